//! The verbs that look at and change places at other sites, end to end.

use crate::federation::Federation;

#[test]
fn a_file_goes_up_and_is_kept_through_a_crash() {
    let mut federation = Federation::two();
    let file = federation.scratch().join("a.dat");
    std::fs::write(&file, b"hello").unwrap();
    federation.titech.ok(&["cp", file.to_str().unwrap(), &federation.kek.place("a.dat")]);
    federation.kek.kill9();
    federation.kek.restart();
    assert_eq!(std::fs::read(federation.kek.root().join("a.dat")).unwrap(), b"hello");
}
