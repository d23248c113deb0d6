//! A mount of an ordinary user, through `fusermount3`.

use crate::federation::{Site, binary};
use crate::mount::can_mount;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// The account `nobody`.
const NOBODY: u32 = 65_534;

/// Becomes `nobody` in a mount namespace of its own, where everybody may open /dev/fuse, as on most machines; then mounts, works,
/// and unmounts.
const SCRIPT: &str = r#"
mount --make-rprivate /
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -euc '
    cd "$1"
    "$2" --dir person login --pop "$3" >&2
    "$2" --dir person mount kek:/data mnt >&2
    trap "$2 --dir person umount mnt >&2 || fusermount3 -uz mnt" EXIT
    grep -c " $1/mnt fuse.renkei .*user_id=65534" /proc/self/mounts
    mkdir mnt/run
    echo "of nobody" >mnt/run/f
    mv mnt/run mnt/done
    cat mnt/done/f
    stat -c "%u %a" mnt/done/f
    trap - EXIT
    "$2" --dir person umount mnt >&2
    ls -A mnt
    "$2" --dir person umount mnt 2>&1 | grep -o RK-MNT-3
' sh "$@"
"#;

fn can_run() -> bool {
    let needs_root = !rustix::process::geteuid().is_root();
    let no_helper = !Path::new("/usr/bin/fusermount3").exists();
    if needs_root || no_helper {
        eprintln!("SKIPPED: needs root to become another account, and fusermount3");
    }
    can_mount() && !needs_root && !no_helper
}

#[test]
fn an_ordinary_user_mounts_and_unmounts() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let site = Site::start(dir.path(), "kek");
    chown(site.root(), Some(NOBODY), Some(NOBODY)).unwrap();
    for folder in ["person", "mnt"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
        chown(dir.path().join(folder), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", "unshare", "--mount", "sh", "-euc", SCRIPT, "sh"]);
    let output = command.arg(dir.path()).arg(binary()).arg(site.dir()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(told.lines().collect::<Vec<_>>(), ["1", "of nobody", "65534 644", "RK-MNT-3"]);
    let file = site.root().join("done/f");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of nobody\n");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&file).unwrap());
    assert_eq!(owner, NOBODY, "the work is done as the account");
}
