//! Agents: a folder that no PoP can mount, served by an account's process that only dials out.

use crate::federation::{Site, account, binary};
use crate::identity::safety::Unprivileged;
use crate::tree::noise;
use crate::wire::raw;
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::Code;
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::WireVersion;
use renkei_core::wire::copy::CopySender;
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::on_behalf::{FilesRequest, OnBehalf};
use renkei_doors::port::{Door, listen};
use renkei_mover::files::remote_files::{self, RemoteDir, RemoteFiles};
use renkei_mover::files::workspace::{Follow, Workspace};
use renkei_mover::files::workspace_suite;
use renkei_net::identity::agency::{AGENT_LIFE, Sponsor};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::certificate::{Facts, parse_chain};
use renkei_net::identity::credential::{Credential, KeyRequest};
use renkei_site::evidence::Evidence;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// The account `nobody`, where tests may become it.
const NOBODY: u32 = 65_534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The account that runs agents: not the one of the PoPs, where that can be.
pub(crate) fn agents_account() -> String {
    if is_root() { "nobody".into() } else { account() }
}

fn give(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Two sites that trust each other; at both, the agents' account of the other one is the same account.
pub(crate) struct World {
    pub(crate) titech: Site,
    pub(crate) kek: Site,
    dir: TempDir,
}

impl World {
    pub(crate) fn start() -> World {
        let dir = open_dir();
        let titech = Site::start(dir.path(), "titech");
        let kek = Site::start(dir.path(), "kek");
        for (site, other) in [(&titech, &kek), (&kek, &titech)] {
            site.take_card(other);
            let principal = format!("{}@{}", agents_account(), other.name);
            site.ok(&["map", "add", "--yes", &principal, &agents_account()]);
            site.ok(&["storage", "add", "scratch", "--agent", &agents_account()]);
            give(site.root());
        }
        World { titech, kek, dir }
    }

    pub(crate) fn person(&self, site: &Site) -> Person {
        Person::at(site, self.dir.path())
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> String {
        file(self.dir.path(), name, content)
    }
}

/// A file of the agents' account.
fn file(dir: &Path, name: &str, content: &[u8]) -> String {
    let folder = dir.join("files");
    fs::create_dir_all(&folder).unwrap();
    give(&folder);
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    give(&path);
    path.display().to_string()
}

/// A folder that other accounts may enter, so that they can log in at the PoPs' sockets.
fn open_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A user with the agents' account.
pub(crate) struct Person {
    pub(crate) dir: PathBuf,
}

impl Person {
    /// The agents' account, logged in at a site, with a directory of its own.
    fn at(site: &Site, parent: &Path) -> Person {
        let dir = parent.join(format!("{}-person", site.name));
        fs::create_dir(&dir).unwrap();
        give(&dir);
        let person = Person { dir };
        person.login(site);
        person
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.arg("--dir").arg(&self.dir).current_dir("/").stdin(Stdio::null());
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn login(&self, site: &Site) {
        self.ok(&["login", "--pop", site.dir().to_str().unwrap()]);
    }

    fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    pub(crate) fn ok<A: AsRef<OsStr> + std::fmt::Debug>(&self, arguments: &[A]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json<A: AsRef<OsStr>>(&self, arguments: &[A]) -> (i32, Value) {
        let output = self.command().arg("--json").args(arguments).output().unwrap();
        let value = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), value.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// The directory of this person's agent of `scratch`.
    fn agent_home(&self, site: &Site) -> Home {
        Home::at(&self.dir.join("state/agents").join(format!("scratch@{}", site.name)))
    }
}

#[test]
fn the_file_service_works_on_the_storage_of_an_agent() {
    let world = World::start();
    let person = world.person(&world.titech);
    let _agent = Agent::start(&person, &world.titech);
    let authority = Authority::load(&raw::home(&world.titech)).unwrap();
    let credential = raw::issue_user(&authority, &agents_account(), 1, SystemTime::now());
    let far = RemoteDir {
        dialler: raw::dialler(&world.titech, &credential),
        site: raw::name(&world.titech),
        place: raw::place("/scratch"),
        write: true,
    };
    let files = RemoteFiles::open(far, remote_files::Config::default()).unwrap();
    let workspace = Workspace::new(Arc::new(files));
    workspace_suite::all(&workspace);
    workspace_suite::checksums_on_demand(&workspace);
}

/// The PoP of a site in this process, as the port of its daemon serves it.
fn pop_here(site: &Site) -> (tokio::runtime::Runtime, Arc<renkei_site::Site>) {
    let home = raw::home(site);
    let here = renkei_site::Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (door, address) = (here.clone(), site.address);
    runtime.spawn(async move { Door::new(&door).accept(listen(address).await.unwrap()).await });
    (runtime, here)
}

#[test]
fn the_file_service_of_a_pop_reaches_its_agents_and_other_sites() {
    let mut world = World::start();
    let person = world.person(&world.titech);
    world.titech.stop();
    let World { titech, kek, .. } = &world;
    let (_runtime, pop) = pop_here(titech);
    let agent = Agent::start_beside(&person, titech);
    let chain = fs::read_to_string(Home::at(&person.dir).user_credential()).unwrap();
    let chain = parse_chain(&chain).unwrap();
    let access = pop.authorise(&pop.authenticate(Evidence::Chain(chain.into())).unwrap()).unwrap();
    let open = |place: &str, need| {
        let place = Place::parse_anywhere(place.as_bytes()).unwrap().unwrap();
        pop.files(&access, &place, need)
    };
    let is_up = || open("/scratch", Need::Look).is_ok();
    wait_until(Duration::from_secs(40), is_up, &|| agent.logged());
    for (place, root) in [("/scratch", &agent.root), ("/kek:/data", &kek.root().to_path_buf())] {
        let workspace = open(place, Need::Write).unwrap();
        workspace_suite::all(&workspace);
        workspace_suite::conditions(&workspace);
        workspace_suite::checksums_on_demand(&workspace);
        if workspace_suite::takes_attributes(root) {
            workspace_suite::attributes_of_users(&workspace);
        }
        let refused = open(place, Need::Read).unwrap().mkdir(&RelPath::parse(b"x").unwrap(), 0o755);
        assert_eq!(refused.unwrap_err().code, Code::ReadOnlyStorage, "{place}");
    }
    // The workspace ends with the rights of its user.
    let workspace = open("/scratch", Need::Look).unwrap();
    titech.ok(&["map", "add", "--yes", &format!("{}@titech", agents_account()), "!"]);
    pop.spawn_watch().unwrap();
    let look = || workspace.stat(&RelPath::root(), Follow::Yes);
    let has_ended = || look().is_err_and(|error| error.code == Code::ShutOut);
    wait_until(Duration::from_secs(60), has_ended, &|| agent.logged());
}

#[test]
fn an_agent_takes_the_word_of_its_own_pop_alone() {
    let world = World::start();
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    fs::write(agent.root.join("f"), "kept").unwrap();
    let authority = |site| Authority::load(&raw::home(site)).unwrap();
    let user = Principal::parse(&format!("{}@titech", agents_account())).unwrap();
    let by_word = |place: &str| {
        let user = OnBehalf::Word { user: user.clone(), scope: None };
        let request = FilesRequest::Remove { place: raw::place(place), recursive: false };
        Request::FilesFor { user, request }
    };
    // The PoP of another site, and the user alone.
    let other = raw::issue_host(&authority(&world.kek));
    let alone = raw::issue_user(&authority(&world.titech), &agents_account(), 1, SystemTime::now());
    for credential in [&other, &alone] {
        let mut session = raw::connect_to_agent(&world.titech, credential, "scratch").unwrap();
        assert_eq!(session.ask(by_word("/scratch/f")).unwrap_err().code, Code::NotAllowed);
    }
    // A PoP takes no such word, not even its own.
    let own = raw::issue_host(&authority(&world.titech));
    let mut session = raw::connect(&world.titech, &own, &world.titech).unwrap();
    assert_eq!(session.ask(by_word("/data/f")).unwrap_err().code, Code::NotAllowed);
    assert_eq!(fs::read(agent.root.join("f")).unwrap(), b"kept");
    // Nor is another user's certificate good in the hands of that site.
    let chain = alone.chain.iter().map(|one| one.to_vec()).collect();
    let request = FilesRequest::Remove { place: raw::place("/data/f"), recursive: false };
    let mut session = raw::connect(&world.kek, &other, &world.titech).unwrap();
    let stolen = session.ask(Request::FilesFor { user: OnBehalf::Chain(chain), request });
    assert_eq!(stolen.unwrap_err().code, Code::NotAllowed);
}

#[test]
fn an_agent_renews_its_certificate_while_it_runs() {
    let world = World::start();
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    let (home, pop) = (person.agent_home(&world.titech), raw::home(&world.titech));
    let facts =
        || Facts::read(&parse_chain(&fs::read_to_string(home.host_cert()).unwrap()).unwrap()[0]).unwrap();
    // As if it had run for twenty hours of its twenty-four.
    let (user, parent) = (facts().sponsor.unwrap(), facts().parent.unwrap());
    let request = KeyRequest::again(&fs::read_to_string(home.host_key()).unwrap()).unwrap().request;
    let then = SystemTime::now() - Duration::from_secs(20 * 3600);
    let sponsor = Sponsor { user, parent };
    let authority = Authority::load(&pop).unwrap();
    let old = authority.issue_agent("scratch", &sponsor, &request, then, AGENT_LIFE).unwrap();
    fs::write(home.host_cert(), &old.pem).unwrap();
    assert_eq!(facts().serial, old.serial);
    wait_until(Duration::from_secs(40), || facts().serial != old.serial, &|| agent.logged());
    assert!(facts().not_after > SystemTime::now() + Duration::from_secs(23 * 3600));
    person.ok(&["ls", &agent.place("")]);
}

#[test]
fn an_agent_receives_the_rules_of_its_account_only() {
    let world = World::start();
    for rule in [["bob@kek", "daemon"], ["eve@kek", "!"]] {
        world.titech.ok(&[&["map", "add", "--yes"], &rule[..]].concat());
    }
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    let map = || fs::read_to_string(person.agent_home(&world.titech).map_file()).unwrap();
    let rule = format!("{0}@kek {0}\n", agents_account());
    assert_eq!(map(), rule);
    // A user whom a rule for all would map to that account gets an error that does not name it.
    world.titech.ok(&["map", "add", "--yes", "*@kek", &agents_account()]);
    let expected = format!("*@kek {}\nbob@kek !\neve@kek !\n{rule}", agents_account());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    wait_until(Duration::from_secs(40), || lines(&map()) == lines(&expected), &|| map() + &agent.logged());
}

#[test]
fn an_agent_survives_rotation_of_its_authority() {
    let world = World::start();
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    let home = person.agent_home(&world.titech);
    let leaf = || parse_chain(&fs::read_to_string(home.host_cert()).unwrap()).unwrap().remove(0);
    let issuer = || Facts::read(&leaf()).unwrap().issuer;
    assert_eq!(issuer(), "CN=titech site authority");
    world.titech.ok(&["site", "rotate-authority", "--keep-days", "1"]);
    let has_followed = || issuer() == "CN=titech site authority 2";
    wait_until(Duration::from_secs(40), has_followed, &|| agent.logged());
    // The login from before is over with this, the agent is not.
    world.titech.ok(&["site", "rotate-authority", "--finish"]);
    person.login(&world.titech);
    let from = world.file("f", b"after it");
    let is_served = || person.run(&["cp", &from, &agent.place("f")]).status.success();
    wait_until(Duration::from_secs(40), is_served, &|| agent.logged());
    assert_eq!(fs::read(agent.root.join("f")).unwrap(), b"after it");
}

#[test]
fn an_agent_survives_renaming_of_its_site() {
    let world = World::start();
    let person = world.person(&world.titech);
    let mut agent = Agent::start(&person, &world.titech);
    let from = world.file("f", b"after it");
    world.titech.ok(&["site", "rename", "tokyo", "--keep-days", "1", "--yes"]);
    for place in ["tokyo:/scratch/f", "titech:/scratch/f"] {
        let is_served = || person.run(&["cp", &from, place]).status.success();
        wait_until(Duration::from_secs(60), is_served, &|| agent.logged());
    }
    assert_eq!(fs::read(agent.root.join("f")).unwrap(), b"after it");
    // It has a certificate of the new authority when it has started again.
    let has_followed = || agent.logged().contains("ready site=tokyo");
    wait_until(Duration::from_secs(60), has_followed, &|| agent.logged());
    // The login from before is over with this, the agent is not, nor when it is started again.
    world.titech.ok(&["site", "rotate-authority", "--finish", "--yes"]);
    person.login(&world.titech);
    for again in [false, true] {
        if again {
            agent.restart();
        }
        let is_served = || person.run(&["cp", &from, "tokyo:/scratch/g"]).status.success();
        wait_until(Duration::from_secs(60), is_served, &|| agent.logged());
        fs::remove_file(agent.root.join("g")).unwrap();
    }
}

/// A running agent of the storage `scratch`.
pub(crate) struct Agent<'a> {
    person: &'a Person,
    site: &'a Site,
    pub(crate) root: PathBuf,
    options: Vec<&'static str>,
    process: Option<Child>,
}

impl<'a> Agent<'a> {
    pub(crate) fn start(person: &'a Person, site: &'a Site) -> Agent<'a> {
        let mut agent = Agent::of(person, site);
        fs::create_dir(&agent.root).unwrap();
        give(&agent.root);
        agent.restart();
        agent
    }

    /// One beside a PoP that has no daemon.
    fn start_beside(person: &'a Person, site: &'a Site) -> Agent<'a> {
        let mut agent = Agent::of(person, site);
        fs::create_dir(&agent.root).unwrap();
        give(&agent.root);
        agent.spawn();
        agent
    }

    /// One that does not run yet.
    fn of(person: &'a Person, site: &'a Site) -> Agent<'a> {
        Agent { person, site, root: person.dir.join("private"), options: Vec::new(), process: None }
    }

    fn command(&self) -> Command {
        let mut command = self.person.command();
        let export = format!("scratch={}", self.root.display());
        command.args(["agent", "--pop", &self.site.address.to_string(), "--export", &export]);
        command.args(&self.options);
        command
    }

    fn log(&self) -> PathBuf {
        self.person.dir.join("agent.log")
    }

    fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn restart(&mut self) {
        self.kill9();
        self.spawn();
        self.wait_until_up();
    }

    fn spawn(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let process = self.command().stdout(Stdio::null()).stderr(Stdio::from(log)).spawn().unwrap();
        self.process = Some(process);
    }

    fn wait_until_up(&self) {
        wait_until(Duration::from_secs(40), || is_up(self.site), &|| self.logged());
    }

    pub(crate) fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().unwrap();
            wait_until(Duration::from_secs(20), || !is_up(self.site), &|| self.site.logged());
        }
    }

    fn place(&self, path: &str) -> String {
        format!("{}:/scratch/{path}", self.site.name)
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the agent of {}\n{}", self.site.name, self.logged());
        }
    }
}

pub(crate) fn wait_until(within: Duration, is: impl Fn() -> bool, why: &dyn Fn() -> String) {
    let deadline = Instant::now() + within;
    while !is() {
        assert!(Instant::now() < deadline, "{}", why());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether the agent of `scratch` is connected, as its PoP says.
fn is_up(site: &Site) -> bool {
    let (_, status) = site.json(&["status"]);
    let agents = status["agents"].as_array().unwrap_or_else(|| panic!("{status}"));
    agents.iter().any(|agent| agent["storage"] == "scratch" && agent["up_s"].is_u64())
}

fn code(report: &Value) -> &str {
    report["error"]["code"].as_str().unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn a_folder_of_an_agent_is_an_ordinary_storage() {
    let world = World::start();
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    let content = noise(3, 5 << 20);
    let file = world.file("file", &content);
    person.ok(&["cp", &file, &agent.place("up")]);
    assert!(fs::read(agent.root.join("up")).unwrap() == content);
    if is_root() {
        assert_eq!(fs::metadata(agent.root.join("up")).unwrap().uid(), NOBODY);
    }
    person.ok(&["cp", &agent.place("up"), &format!("{file}.back")]);
    assert!(fs::read(format!("{file}.back")).unwrap() == content);
    // A file session goes to the agent as a copy does.
    assert!(person.run(&["cat", &agent.place("up")]).stdout == content);
    // Every verb, some with places of the PoP and of the agent in one command.
    person.ok(&["mkdir", "-p", &agent.place("a/b"), "titech:/data/c"]);
    person.ok(&["mv", &agent.place("up"), &agent.place("a/b/moved")]);
    person.ok(&["cp", "-r", &agent.place("a"), "titech:/data/c"]);
    assert!(fs::read(world.titech.root().join("c/a/b/moved")).unwrap() == content);
    let listed = person.ok(&["ls", "titech:", &agent.place("a"), "titech:/data/c", &agent.place("a/b")]);
    assert!(listed.contains("scratch") && listed.contains("moved") && listed.contains("b"), "{listed}");
    let [here, there] = ["titech:/data/c/a/b/moved".to_owned(), agent.place("a/b/moved")];
    let sums = person.ok(&["checksum", &here, &there, &here, &there]);
    let sums: Vec<&str> = sums.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    for verb in ["stat", "du", "df"] {
        person.ok(&[verb, &agent.place("a"), "titech:/data/c"]);
    }
    assert_eq!(person.json(&["df", "titech"]).1["storages"].as_array().unwrap().len(), 2);
    person.ok(&["cp", "-r", "titech:/data/c", &agent.place("")]);
    assert!(fs::read(agent.root.join("c/a/b/moved")).unwrap() == content);
    // The sender has all of the sources.
    let (status, report) =
        person.json(&["cp", "-r", &agent.place("a/b/moved"), "titech:/data/c", "kek:/data"]);
    assert_eq!((status, code(&report)), (5, "RK-AUTH-14"), "{report}");
    person.ok(&["rm", "-r", &agent.place("a"), "titech:/data/c", &agent.place("c")]);
    assert_eq!(crate::tree::count(&agent.root), 0);
    let (status, report) = person.json(&["stat", &agent.place("missing")]);
    assert_eq!((status, code(&report)), (3, "RK-STORE-1"), "{report}");
}

#[test]
fn an_agent_syncs_a_tree() {
    let world = World::start();
    let (person, local) = (world.person(&world.kek), world.person(&world.titech));
    let agent = Agent::start(&local, &world.titech);
    let many = world.kek.root().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1000 {
        fs::write(many.join(number.to_string()), number.to_string()).unwrap();
    }
    person.ok(&["sync", "kek:/data/many", &agent.place("many")]);
    assert_eq!(fs::read_dir(agent.root.join("many")).unwrap().count(), 1000);
    fs::write(many.join("7"), "changed").unwrap();
    fs::remove_file(many.join("8")).unwrap();
    person.ok(&["sync", "--delete", "kek:/data/many", &agent.place("many")]);
    assert_eq!(fs::read(agent.root.join("many/7")).unwrap(), b"changed");
    assert!(!agent.root.join("many/8").exists());
    // And from the agent, which sends itself.
    person.ok(&["sync", &agent.place("many"), "kek:/data/back"]);
    assert_eq!(fs::read_dir(world.kek.root().join("back")).unwrap().count(), 999);
}

#[test]
fn two_sites_exchange_data_through_their_agents() {
    let world = World::start();
    let (here, there) = (world.person(&world.titech), world.person(&world.kek));
    let (mut left, right) = (Agent::start(&here, &world.titech), Agent::start(&there, &world.kek));
    let content = noise(4, 9 << 20);
    fs::write(left.root.join("one"), &content).unwrap();
    give(&left.root.join("one"));
    here.ok(&["cp", &left.place("one"), &right.place("two")]);
    assert!(fs::read(right.root.join("two")).unwrap() == content);
    there.ok(&["cp", &right.place("two"), "titech:/data/three"]);
    assert!(fs::read(world.titech.root().join("three")).unwrap() == content);
    here.ok(&["cp", "titech:/data/three", &right.place("four")]);
    assert!(fs::read(right.root.join("four")).unwrap() == content);
    let file = world.file("file", &content);
    here.ok(&["cp", &file, &right.place("five")]);
    assert!(fs::read(right.root.join("five")).unwrap() == content);
    // A queued one, by the PoP of either site.
    for person in [&here, &there] {
        let to = right.place(&format!("by-{}", person.dir.file_name().unwrap().to_str().unwrap()));
        let id = person.ok(&["cp", "--detach", "--verify", "both", &left.place("one"), &to]);
        let ended = person.run(&["wait", "--timeout", "60", id.trim()]);
        assert!(ended.status.success(), "{}", person.ok(&["why", id.trim()]));
    }
    let (_, route) = here.json(&["route", &left.place("one"), &right.place("x")]);
    let hops = &route["ways"][0]["hops"];
    assert_eq!(hops[0], "the agent of titech:/scratch connects to kek", "{route}");
    assert_eq!(hops[1], "the agent of kek:/scratch connects to kek when called over its line", "{route}");
    // Through both PoPs: agent, PoP, PoP, agent.
    left.options = vec!["--through-pop"];
    left.restart();
    here.ok(&["cp", &left.place("one"), &right.place("six")]);
    assert!(fs::read(right.root.join("six")).unwrap() == content);
    let logged = world.titech.logged();
    assert!(logged.contains("principal=titech/scratch to=kek"), "{logged}");
    // The PoPs saw no transfer: the agents talked to each other.
    assert!(!world.kek.logged().contains("opening"), "{}", world.kek.logged());
}

#[test]
fn an_agent_of_a_site_without_a_port_is_reached_over_two_lines() {
    let dir = open_dir();
    let hub = Site::start(dir.path(), "hub");
    let left = Site::start_private(dir.path(), "left", &hub);
    left.ok(&["map", "add", "--yes", &format!("{}@hub", agents_account()), &agents_account()]);
    left.ok(&["storage", "add", "scratch", "--agent", &agents_account()]);
    let (far, local) = (Person::at(&hub, dir.path()), Person::at(&left, dir.path()));
    let agent = Agent::start(&local, &left);
    let content = noise(9, 5 << 20);
    let file = file(dir.path(), "file", &content);
    far.ok(&["cp", &file, &agent.place("up")]);
    assert!(fs::read(agent.root.join("up")).unwrap() == content);
    give(hub.root());
    far.ok(&["cp", &agent.place("up"), "hub:/data/pushed"]);
    assert!(fs::read(hub.root().join("pushed")).unwrap() == content);
    far.ok(&["cp", "hub:/data/pushed", &agent.place("back")]);
    assert!(fs::read(agent.root.join("back")).unwrap() == content);
}

#[test]
fn an_agent_that_was_restored_serves_without_another_login() {
    let world = World::start();
    let person = world.person(&world.titech);
    let mut agent = Agent::start(&person, &world.titech);
    // In the directory itself, which it is not part of.
    let saved = person.dir.join("saved");
    person.ok(&["backup", saved.to_str().unwrap()]);
    assert!(!saved.join("config/saved").exists());
    agent.kill9();
    for lost in ["state", "user", "trust"] {
        let _ = fs::remove_dir_all(person.dir.join(lost));
    }
    person.ok(&["restore", saved.to_str().unwrap()]);
    agent.restart();
    let file = world.file("file", b"after the restore");
    person.ok(&["cp", &file, &agent.place("up")]);
    assert_eq!(fs::read(agent.root.join("up")).unwrap(), b"after the restore");
}

#[test]
fn a_queued_copy_survives_kills_of_agent_and_pops() {
    let mut world = World::start();
    let (here, there) = (world.person(&world.titech), world.person(&world.kek));
    let content = noise(5, 40 << 20);
    fs::write(world.kek.root().join("large"), &content).unwrap();
    give(&world.kek.root().join("large"));
    let id = {
        let mut agent = Agent::start(&here, &world.titech);
        let to = agent.place("large");
        let id = there.ok(&["cp", "--detach", "--limit", "8M", "kek:/data/large", &to]);
        let moved = || there.json(&["status", id.trim()]).1.to_string();
        let is_moving = || {
            let temps = fs::read_dir(&agent.root).unwrap().flatten();
            temps.map(|entry| entry.metadata().map_or(0, |data| data.blocks())).sum::<u64>() > 20_000
        };
        wait_until(Duration::from_secs(60), is_moving, &moved);
        agent.kill9();
        let waits = || there.json(&["why", id.trim()]).1.to_string();
        wait_until(Duration::from_secs(60), || waits().contains("RK-"), &waits);
        id
    };
    world.kek.restart();
    world.titech.restart();
    let mut agent = Agent::of(&here, &world.titech);
    agent.restart();
    there.ok(&["retry", id.trim()]);
    let ended = there.run(&["wait", "--timeout", "90", id.trim()]);
    assert!(ended.status.success(), "{}", there.ok(&["why", id.trim()]));
    assert!(fs::read(agent.root.join("large")).unwrap() == content);
    assert_eq!(crate::tree::count(&agent.root), 1, "nothing else is left");
}

#[test]
fn cancelling_frees_space_at_an_agent() {
    let world = World::start();
    let (here, there) = (world.person(&world.titech), world.person(&world.kek));
    fs::write(world.kek.root().join("large"), noise(5, 40 << 20)).unwrap();
    give(&world.kek.root().join("large"));
    let agent = Agent::start(&here, &world.titech);
    let id = there.ok(&["cp", "--detach", "--limit", "4M", "kek:/data/large", &agent.place("large")]);
    let listed = || there.json(&["unfinished", "titech:/scratch"]).1["unfinished"][0].clone();
    let is_kept = || listed()["bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20);
    wait_until(Duration::from_secs(60), is_kept, &|| listed().to_string());
    assert_eq!(listed()["id"].as_str(), Some(id.trim()));
    there.ok(&["cancel", id.trim()]);
    let is_gone = || crate::tree::count(&agent.root) == 0;
    wait_until(Duration::from_secs(60), is_gone, &|| listed().to_string());
    assert!(listed().is_null());
}

#[test]
fn a_broken_copy_resumes_at_the_block() {
    let world = World::start();
    let person = world.person(&world.titech);
    let mut agent = Agent::start(&person, &world.titech);
    let content = noise(6, 48 << 20);
    let file = world.file("large", &content);
    let mut command = person.command();
    let to = agent.place("large");
    command.args(["--json", "cp", "--limit", "16M", &file, &to]).stdout(Stdio::piped());
    let copy = command.spawn().unwrap();
    let passed = || {
        let (_, status) = world.titech.json(&["status"]);
        let rows = status["relayed"].as_array().unwrap().clone();
        rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>() > 20 << 20
    };
    wait_until(Duration::from_secs(60), passed, &|| agent.logged());
    agent.restart();
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(fs::read(agent.root.join("large")).unwrap() == content);
    assert!(report["bytes_skipped"].as_u64().unwrap() >= 8 << 20, "{report}");
}

#[test]
fn a_missing_agent_is_named_and_sigterm_stops_an_agent() {
    let mut world = World::start();
    let person = world.person(&world.titech);
    let file = world.file("file", b"content");
    let (status, report) = person.json(&["cp", &file, "titech:/scratch/file"]);
    assert_eq!((status, code(&report)), (8, "RK-ROUTE-9"), "{report}");
    assert!(report["error"]["cause"].as_str().unwrap().contains(&agents_account()), "{report}");
    let mut agent = Agent::start(&person, &world.titech);
    person.ok(&["cp", &file, &agent.place("file")]);
    let doctor = world.titech.json(&["doctor"]).1.to_string();
    assert!(doctor.contains("agent of scratch") && doctor.contains("up "), "{doctor}");
    assert!(person.ok(&["status", "titech"]).contains("agent of scratch"));
    // A second one of the same directory does not disturb the first.
    let second = agent.command().output().unwrap();
    assert_eq!(second.status.code(), Some(8), "{second:?}");
    let process = agent.process.as_mut().unwrap();
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(process.wait().unwrap().success());
    agent.process = None;
    wait_until(Duration::from_secs(20), || !is_up(&world.titech), &|| world.titech.logged());
    drop(agent);
    // An agent whose PoP is away waits for it.
    let mut agent = Agent::of(&person, &world.titech);
    agent.restart();
    let process = agent.process.take();
    drop(agent);
    world.titech.stop();
    world.titech.restart();
    let mut agent = Agent::of(&person, &world.titech);
    agent.process = process;
    agent.wait_until_up();
    person.ok(&["cp", &agent.place("file"), &format!("{file}.back")]);
}

#[test]
fn the_first_of_two_agents_serves_until_it_ends() {
    let world = World::start();
    let parent = world.dir.path().join("second");
    fs::create_dir(&parent).unwrap();
    fs::set_permissions(&parent, Permissions::from_mode(0o755)).unwrap();
    let (one, two) = (world.person(&world.titech), Person::at(&world.titech, &parent));
    let mut first = Agent::start(&one, &world.titech);
    let second = Agent::start(&two, &world.titech);
    wait_until(Duration::from_secs(20), || second.logged().contains("another agent"), &|| second.logged());
    let file = world.file("file", b"content");
    one.ok(&["cp", &file, &first.place("a")]);
    assert!(first.root.join("a").exists() && !second.root.join("a").exists());
    let mut process = first.process.take().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    wait_until(Duration::from_secs(20), || second.logged().contains("line up"), &|| second.logged());
    one.ok(&["cp", &file, &first.place("b")]);
    assert!(second.root.join("b").exists() && !first.root.join("b").exists());
}

#[test]
fn an_agent_refuses_other_accounts() {
    if !is_root() {
        eprintln!("skipped: needs root to become another account");
        return;
    }
    let world = World::start();
    let person = world.person(&world.titech);
    let agent = Agent::start(&person, &world.titech);
    let file = world.file("file", b"content");
    // The account of the PoP, also root, has nothing to say there.
    let (status, report) = world.titech.json(&["cp", &file, &agent.place("file")]);
    assert_eq!((status, code(&report)), (5, "RK-AUTH-21"), "{report}");
    assert!(!world.titech.ok(&["ls", "titech:"]).contains("scratch"));
    // And the agent itself refuses it, asked behind the back of its PoP.
    let mut by_hand = raw::connect_to_agent(&world.titech, &raw::user(&world.titech), "scratch").unwrap();
    let refused = by_hand.ask(Request::Stat(Some(raw::place("/scratch/x")))).unwrap_err();
    assert_eq!(refused.code, Code::NotAgentsAccount, "{refused}");
    let (send, to) = (raw::open_send("/scratch/x"), raw::name(&world.kek));
    let refused = by_hand.ask(Request::Push { send, to, grant: [1; 32] }).unwrap_err();
    assert_eq!(refused.code, Code::NotAgentsAccount, "{refused}");
    // A storage that is not meant for an agent, one for that of another account, one that is not there.
    world.titech.ok(&["storage", "add", "of-root", "--agent", "root"]);
    for storage in ["data", "of-root", "missing"] {
        let export = format!("{storage}={}", agent.root.display());
        let (status, report) = person.json(&["agent", "--export", &export]);
        assert_eq!((status, code(&report)), (5, "RK-AUTH-20"), "{storage}: {report}");
    }
    let remedy = Code::AgentRefused.row().remedy;
    assert!(remedy.contains("renkei storage add STORAGE --agent ACCOUNT"));
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pop_without_privileges_has_agents_of_other_accounts() {
    const DAEMON: u32 = 1;
    if !is_root() {
        eprintln!("skipped: needs root to become another account");
        return;
    }
    let dir = open_dir();
    let titech = Site::start(dir.path(), "titech");
    let cern = Unprivileged::start(&titech);
    fs::set_permissions(cern.dir.path(), Permissions::from_mode(0o755)).unwrap();
    cern.ok(&["storage", "add", "scratch", "--agent", "daemon"]);
    let [own, private] = ["own", "private"].map(|name| dir.path().join(name));
    for folder in [&own, &private] {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(DAEMON), Some(DAEMON)).unwrap();
    }
    let command = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("--dir").arg(&own).args(arguments).uid(DAEMON).gid(DAEMON);
        command.current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let run = |arguments: &[&str]| command(arguments).output().unwrap();
    assert!(run(&["login", "--pop", cern.dir.path().join("pop").to_str().unwrap()]).status.success());
    let export = format!("scratch={}", private.display());
    let _agent = Running(command(&["agent", "--export", &export]).stdout(Stdio::null()).spawn().unwrap());
    let status = || cern.ok(&["--json", "status"]);
    let is_up = || serde_json::from_str::<Value>(&status()).unwrap()["agents"][0]["up_s"].is_u64();
    wait_until(Duration::from_secs(40), is_up, &status);
    let file = file(dir.path(), "file", b"content");
    let sent = run(&["--json", "cp", &file, "cern:/scratch/x"]);
    assert!(sent.status.success(), "{sent:?}");
    assert_eq!(fs::metadata(private.join("x")).unwrap().uid(), DAEMON);
    // The agent itself serves its own account only.
    let refused = run(&["--json", "cp", &file, "cern:/data/x"]);
    assert!(String::from_utf8_lossy(&refused.stdout).contains("RK-AUTH-9"), "{refused:?}");
}

#[test]
fn a_stolen_agent_certificate_is_refused_for_other_uses() {
    let world = World::start();
    let person = world.person(&world.titech);
    let _agent = Agent::start(&person, &world.titech);
    world.titech.ok(&["storage", "add", "other", "--agent", &agents_account()]);
    let home = person.agent_home(&world.titech);
    assert_eq!(fs::metadata(home.config_dir()).unwrap().permissions().mode() & 0o777, 0o700);
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let stolen = Credential::parse(&read(home.host_cert()), &read(home.host_key()), Path::new("stolen"));
    let stolen = stolen.unwrap();
    let ask = |to: &Site, request: Request| {
        let mut session = raw::connect(&world.titech, &stolen, to).unwrap();
        session.ask(request).map_err(|error| error.code)
    };
    for site in [&world.titech, &world.kek] {
        assert_eq!(ask(site, Request::List(Some(raw::place("/data")))), Err(Code::NotMapped));
        assert_eq!(ask(site, Request::Status), Err(Code::NotMapped));
        let chain: Vec<_> = raw::user(&world.titech).chain.iter().map(|one| one.to_vec()).collect();
        let copy = raw::open_copy("/data/x");
        let asks = Request::OpenCopy { copy, by: CopySender::PopFor(chain) };
        for version in [WireVersion::V3, WireVersion::V4] {
            assert_eq!(ask(site, asks.clone().for_version(version).unwrap()), Err(Code::NotAllowed));
        }
    }
    assert_eq!(ask(&world.kek, Request::Line), Err(Code::NotAllowed));
    let request = || KeyRequest::generate().unwrap().request;
    let enlist = |storage: &str| Request::Enlist { storage: storage.into(), request: request() };
    assert_eq!(ask(&world.titech, enlist("other")), Err(Code::AgentRefused));
    assert_eq!(ask(&world.kek, enlist("scratch")), Err(Code::AgentRefused));
    assert_eq!(ask(&world.titech, Request::Terms("other".into())), Err(Code::AgentRefused));
    assert!(matches!(ask(&world.titech, enlist("scratch")), Ok(Reply::Enlisted(_))));
    // No site mistakes its holder for the PoP of the site.
    let imposed = raw::serve_as(&stolen);
    let error = raw::dialler(&world.kek, &raw::user(&world.kek)).secure(&raw::name(&world.titech), imposed);
    assert_eq!(error.err().unwrap().code, Code::WrongSite);
}

#[test]
fn a_revoked_agent_is_disconnected() {
    let world = World::start();
    let person = world.person(&world.titech);
    let mut agent = Agent::start(&person, &world.titech);
    let (file, titech) = (world.file("large", &noise(8, 32 << 20)), &world.titech);
    let principal = format!("{}@titech", agents_account());
    let mut command = person.command();
    let to = agent.place("large");
    command.args(["--json", "cp", "--retry-for", "0", "--limit", "4M", &file, &to]).stdout(Stdio::piped());
    let copy = command.spawn().unwrap();
    let passes = || titech.json(&["status"]).1["relayed"][0]["bytes"].as_u64() > Some(1 << 20);
    wait_until(Duration::from_secs(30), passes, &|| titech.logged());
    titech.ok(&["revoke", &principal]);
    wait_until(Duration::from_secs(10), || !is_up(titech), &|| titech.logged());
    let output = copy.wait_with_output().unwrap();
    assert!(!output.status.success() && !agent.root.join("large").exists(), "{output:?}");
    // It says why it cannot reconnect, and reconnects when its user has logged in again.
    wait_until(Duration::from_secs(20), || agent.logged().contains("RK-AUTH-5"), &|| agent.logged());
    assert!(!is_up(titech));
    person.login(titech);
    agent.wait_until_up();
    // Nor does a user who is mapped to another account.
    if is_root() {
        titech.ok(&["map", "add", "--yes", &principal, &account()]);
        wait_until(Duration::from_secs(10), || !is_up(titech), &|| titech.logged());
        titech.ok(&["map", "remove", &principal]);
        agent.wait_until_up();
    }
    titech.ok(&["storage", "remove", "scratch"]);
    let listed = || titech.json(&["status"]).1["agents"].as_array().unwrap().len();
    wait_until(Duration::from_secs(10), || listed() == 0, &|| titech.logged());
    wait_until(Duration::from_secs(20), || agent.logged().contains("RK-AUTH-20"), &|| agent.logged());
    let (_, report) = person.json(&["cp", &file, &to]);
    assert_eq!(code(&report), "RK-STORE-16", "{report}");
    agent.process.take().map(|mut process| process.kill()).unwrap().unwrap();
}
