//! The topology file: the sites of a lab and the links between them.
//!
//! The file has sites and links, or a matrix of both, or both. [`Topology::parse`] returns every directed link with
//! its complete shape, or an error with the line and the nearest word that would have been right. Links have
//! directions: `rtt` and `between` are shorthands for two of them. docs/lab.md has every field.

use super::shape::{Delay, Loss, Mtu, Policer, Queue, Rate, Shape, Share};
use renkei_core::error::{Code, Error};
use renkei_core::path::{SiteName, is_label};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Maximum of sites of a lab: the last octet of an address.
const MAX_SITES: usize = 250;
/// Maximum of parallel paths between two sites.
const MAX_PATHS: usize = 16;
/// Longest name of a lab, so that namespaces and files of it have legal names.
const MAX_NAME: usize = 32;

/// A federation to emulate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The lab's name.
    pub name: String,
    /// The engine that moves its packets.
    #[serde(default)]
    pub engine: EngineChoice,
    /// The random seed of the wire; by default another one each time.
    #[serde(default)]
    pub seed: Option<u64>,
    /// The sites, in the order of the file.
    pub sites: Vec<Site>,
    /// Every directed link.
    pub links: Vec<Link>,
}

/// Which engine a lab is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum EngineChoice {
    /// The wire; the kernel's where there are no TAP devices.
    #[default]
    Auto,
    /// netem and htb.
    Kernel,
    /// TAP devices and a thread.
    Wire,
}

/// One site: a network namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Its name, which is its host name too.
    pub name: SiteName,
    /// The traffic that its border lets in.
    pub gate: Gate,
    /// Whether a PoP runs there.
    pub pop: bool,
    /// The folder of its storage; by default in the lab's own folder.
    pub storage: Option<PathBuf>,
    /// Sysctl settings of its namespace.
    pub sysctl: BTreeMap<String, String>,
}

/// The traffic that a site's border lets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Everything.
    #[default]
    Open,
    /// Answers only.
    Outbound,
    /// Answers only, and other sites see a translated address.
    Nat,
}

/// One direction between two sites on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The sending site's index in `sites`.
    pub from: usize,
    /// The receiving site's index in `sites`.
    pub to: usize,
    /// Number of the path: `eth<path>` at both ends.
    pub path: usize,
    /// Its effects on packets.
    pub shape: Shape,
}

// ---- the file as it is written ---------------------------------------------------------------------------------------

/// Sysctl settings by name.
type Settings = BTreeMap<Spanned<String>, Setting>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    #[serde(default)]
    engine: EngineChoice,
    seed: Option<u64>,
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    sysctl: Settings,
    #[serde(default)]
    site: Vec<FileSite>,
    #[serde(default)]
    link: Vec<Spanned<FileLink>>,
    matrix: Option<Spanned<Matrix>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Defaults {
    pop: bool,
    storage: Option<PathBuf>,
    rate: Option<Rate>,
    delay: Option<Delay>,
    rtt: Option<Delay>,
    jitter: Option<Delay>,
    loss: Option<Loss>,
    policer: Option<Policer>,
    queue: Option<Queue>,
    reorder: Option<Share>,
    mtu: Option<Mtu>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSite {
    name: Spanned<String>,
    private: Option<Private>,
    pop: Option<bool>,
    storage: Option<PathBuf>,
    #[serde(default)]
    sysctl: Settings,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Private {
    Outbound,
    Nat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLink {
    between: Option<[Spanned<String>; 2]>,
    from: Option<Spanned<String>>,
    to: Option<Spanned<String>>,
    #[serde(default)]
    path: usize,
    rtt: Option<Delay>,
    rate: Option<Rate>,
    delay: Option<Delay>,
    jitter: Option<Delay>,
    loss: Option<Loss>,
    policer: Option<Policer>,
    queue: Option<Queue>,
    reorder: Option<Share>,
    mtu: Option<Mtu>,
    up: Option<bool>,
    back: Option<Shape>,
}

/// Rows are `from`, columns `to`; the diagonal is ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    sites: Vec<Spanned<String>>,
    rtt_ms: Option<Spanned<Vec<Vec<f64>>>>,
    rate: Option<Spanned<Vec<Vec<Rate>>>>,
    goodput_mb_s: Option<Spanned<Vec<Vec<f64>>>>,
}

/// The value of a sysctl setting: text, or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Setting {
    Text(String),
    Number(i64),
}

impl Defaults {
    fn shape(&self) -> Shape {
        let delay = self.delay.or(self.rtt.map(half));
        let Defaults { rate, jitter, loss, policer, queue, reorder, mtu, .. } = *self;
        Shape { rate, delay, jitter, loss, policer, queue, reorder, mtu, up: Some(true) }
    }
}

impl FileLink {
    fn shape(&self) -> Shape {
        let delay = self.delay.or(self.rtt.map(half));
        let FileLink { rate, jitter, loss, policer, queue, reorder, mtu, up, .. } = *self;
        Shape { rate, delay, jitter, loss, policer, queue, reorder, mtu, up }
    }
}

fn half(rtt: Delay) -> Delay {
    Delay(rtt.0 / 2)
}

// ---- from the file to the links --------------------------------------------------------------------------------------

/// An error and its position.
struct Mistake {
    span: Option<Range<usize>>,
    cause: String,
}

impl Mistake {
    fn at(span: Range<usize>, cause: impl Into<String>) -> Self {
        Mistake { span: Some(span), cause: cause.into() }
    }
}

impl Topology {
    /// Reads the file at `path`; `name` replaces the one in the file.
    pub fn read(path: &Path, name: Option<&str>) -> Result<Self, Error> {
        const MAX_BYTES: u64 = 4 << 20;
        let text = renkei_config::home::read_text(path, MAX_BYTES)?;
        let none = || Error::new(Code::PathNotFound, "read topology", path.display(), "no such file");
        Topology::parse(&text.ok_or_else(none)?, path, name)
    }

    /// Parses the text of the file at `path`; `name` replaces the one in it.
    pub fn parse(text: &str, path: &Path, name: Option<&str>) -> Result<Self, Error> {
        let parsed = toml::from_str::<File>(text)
            .map_err(|error| Mistake { span: error.span(), cause: explain(error.message()) });
        parsed.and_then(|file| build(file, name)).map_err(|mistake| {
            let place = match mistake.span {
                Some(span) => format!("{}:{}", path.display(), line_of(text, span)),
                None => path.display().to_string(),
            };
            Error::new(Code::TopologyInvalid, "read topology", place, mistake.cause)
        })
    }

    /// The index of a site in `sites`.
    pub fn site(&self, name: &str) -> Option<usize> {
        self.sites.iter().position(|site| site.name.as_str() == name)
    }

    /// Number of paths: one more than the highest number.
    pub fn paths(&self) -> usize {
        self.links.iter().map(|link| link.path + 1).max().unwrap_or(1)
    }

    /// The paths on which a site has links.
    pub fn paths_of(&self, site: usize) -> Vec<usize> {
        let has = |path: &usize| {
            self.links.iter().any(|link| link.path == *path && (link.from == site || link.to == site))
        };
        (0..self.paths()).filter(has).collect()
    }

    /// The round trip over a link and back; twice its delay where there is no link back.
    pub fn round_trip(&self, link: &Link) -> std::time::Duration {
        let back = |other: &&Link| (other.from, other.to, other.path) == (link.to, link.from, link.path);
        let there = link.shape.delay();
        there + self.links.iter().find(back).map_or(there, |back| back.shape.delay())
    }

    /// The name of a link: `kek->titech`, with `/1` on the second path.
    pub fn link_name(&self, link: &Link) -> String {
        let (from, to) = (&self.sites[link.from].name, &self.sites[link.to].name);
        if link.path == 0 { format!("{from}->{to}") } else { format!("{from}->{to}/{}", link.path) }
    }

    /// The links selected by `a..b`, `a->b`, either with `/PATH`, or by a site alone.
    pub fn select(&self, text: &str) -> Result<Vec<usize>, Error> {
        let unknown = |cause: String| Error::new(Code::LabNameUnknown, "find link", text, cause);
        let (ends, path) = match text.split_once('/') {
            None => (text, None),
            Some((ends, path)) => (ends, Some(path)),
        };
        let number = path.map(str::parse::<usize>).transpose();
        let number = number.map_err(|_| unknown("a path is a number".into()))?;
        let site = |name: &str| {
            self.site(name.trim()).ok_or_else(|| unknown(format!("no site `{name}`{}", self.hint(name))))
        };
        let (a, b, both) = match (ends.split_once("->"), ends.split_once("..")) {
            (Some((a, b)), _) => (site(a)?, Some(site(b)?), false),
            (_, Some((a, b))) => (site(a)?, Some(site(b)?), true),
            _ => (site(ends)?, None, true),
        };
        let fits = |link: &Link| match b {
            None => link.from == a || link.to == a,
            Some(b) => (link.from, link.to) == (a, b) || (both && (link.from, link.to) == (b, a)),
        };
        let on_path = |link: &Link| number.is_none_or(|number| link.path == number);
        let found: Vec<usize> =
            (0..self.links.len()).filter(|at| fits(&self.links[*at]) && on_path(&self.links[*at])).collect();
        if found.is_empty() { Err(unknown("the sites have no such link".into())) } else { Ok(found) }
    }

    /// The error for a site that is not in the lab.
    pub fn unknown_site(&self, name: &str) -> Error {
        Error::new(Code::LabNameUnknown, "find site", name, format!("no site `{name}`{}", self.hint(name)))
    }

    fn hint(&self, name: &str) -> String {
        suggestion(name, self.sites.iter().map(|site| site.name.as_str()))
    }
}

fn build(file: File, name: Option<&str>) -> Result<Topology, Mistake> {
    let name = lab_name(&file.name, name)?;
    let (engine, seed) = (file.engine, file.seed);
    let topology = Topology { name, engine, seed, sites: sites(&file)?, links: Vec::new() };
    unique_names(&topology)?;
    if topology.sites.is_empty() {
        return Err(Mistake { span: None, cause: "there is no [[site]] and no matrix".into() });
    }
    let mut builder = Builder { topology, base: file.defaults.shape(), named: HashSet::new() };
    if let Some(matrix) = &file.matrix {
        builder.add_matrix(matrix)?;
    }
    for link in &file.link {
        builder.add_link(link)?;
    }
    Ok(builder.topology)
}

/// The links being built.
struct Builder {
    topology: Topology,
    base: Shape,
    /// The links with a [[link]] entry of their own: from, to, path.
    named: HashSet<(usize, usize, usize)>,
}

impl Builder {
    fn add_matrix(&mut self, matrix: &Spanned<Matrix>) -> Result<(), Mistake> {
        let matrix = matrix.get_ref();
        let sites = &matrix.sites;
        square(matrix.rtt_ms.as_ref(), sites.len(), "rtt_ms")?;
        square(matrix.rate.as_ref(), sites.len(), "rate")?;
        square(matrix.goodput_mb_s.as_ref(), sites.len(), "goodput_mb_s")?;
        let places: Vec<usize> =
            sites.iter().map(|name| find(&self.topology, name)).collect::<Result<_, _>>()?;
        for (row, &from) in places.iter().enumerate() {
            for (column, &to) in places.iter().enumerate().filter(|(column, _)| *column != row) {
                let shape = matrix.cell(row, column, &self.base)?;
                self.topology.links.push(Link { from, to, path: 0, shape });
            }
        }
        Ok(())
    }

    fn add_link(&mut self, link: &Spanned<FileLink>) -> Result<(), Mistake> {
        let file = link.get_ref();
        let mistake = |cause: &str| Mistake::at(link.span(), cause);
        if let Some(cause) = file.contradiction() {
            return Err(mistake(cause));
        }
        let place = |name: &Spanned<String>| find(&self.topology, name);
        let (from, to) = match (&file.between, &file.from, &file.to) {
            (Some([a, b]), None, None) => (place(a)?, place(b)?),
            (None, Some(from), Some(to)) => (place(from)?, place(to)?),
            _ => return Err(mistake("a link has either `between = [A, B]` or `from` and `to`")),
        };
        if from == to {
            return Err(mistake("a link joins two sites"));
        }
        let mut shape = file.shape();
        self.add_direction((from, to, file.path), &shape).map_err(|cause| mistake(&cause))?;
        if file.between.is_some() {
            shape.overlay(&file.back.clone().unwrap_or_default());
            self.add_direction((to, from, file.path), &shape).map_err(|cause| mistake(&cause))?;
        }
        Ok(())
    }

    /// Adds a link, or overlays its shape on the one of the matrix.
    fn add_direction(&mut self, key: (usize, usize, usize), shape: &Shape) -> Result<(), String> {
        let (from, to, path) = key;
        let Topology { links, .. } = &mut self.topology;
        let known = links.iter().position(|link| (link.from, link.to, link.path) == key);
        let at = known.unwrap_or_else(|| {
            links.push(Link { from, to, path, shape: self.base.clone() });
            links.len() - 1
        });
        links[at].shape.overlay(shape);
        if self.named.insert(key) {
            return Ok(());
        }
        Err(format!("the link {} is there twice", self.topology.link_name(&self.topology.links[at])))
    }
}

impl FileLink {
    fn contradiction(&self) -> Option<&'static str> {
        if self.path >= MAX_PATHS {
            return Some("paths are numbered 0 to 15");
        }
        if self.rtt.is_some() && self.delay.is_some() {
            return Some("give `rtt` or `delay`, not both");
        }
        (self.back.is_some() && self.between.is_none())
            .then_some("`back` is the other direction of `between`")
    }
}

impl Matrix {
    /// The shape of one cell.
    fn cell(&self, row: usize, column: usize, base: &Shape) -> Result<Shape, Mistake> {
        let mut shape = base.clone();
        if let Some(rtt) = &self.rtt_ms {
            let delay = one_way(rtt.get_ref()[row][column]);
            shape.delay = Some(delay.map_err(|cause| Mistake::at(rtt.span(), cause))?);
        }
        if let Some(rate) = &self.rate {
            shape.rate = Some(rate.get_ref()[row][column]);
        }
        if let Some(goodput) = &self.goodput_mb_s {
            let rate = rate_for(goodput.get_ref()[row][column], shape.mtu());
            shape.rate = Some(rate.map_err(|cause| Mistake::at(goodput.span(), cause))?);
        }
        Ok(shape)
    }
}

fn lab_name(in_file: &Spanned<String>, given: Option<&str>) -> Result<String, Mistake> {
    let name = given.unwrap_or(in_file.get_ref());
    let span = given.is_none().then(|| in_file.span());
    check_name(name).map(|()| name.into()).map_err(|cause| Mistake { span, cause })
}

/// Checks the name of a lab; the error is the reason.
pub fn check_name(name: &str) -> Result<(), String> {
    if is_label(name) && name.len() <= MAX_NAME {
        return Ok(());
    }
    Err(format!("`{name}` is no name for a lab: 1 to {MAX_NAME} of a-z, 0-9 and -, a letter first"))
}

/// The sites of the file, then those that are only in the matrix.
fn sites(file: &File) -> Result<Vec<Site>, Mistake> {
    let mut sites: Vec<Site> = Vec::new();
    for site in &file.site {
        let name = site_name(&site.name)?;
        if sites.iter().any(|known| known.name == name) {
            return Err(Mistake::at(site.name.span(), format!("there are two sites `{name}`")));
        }
        sites.push(a_site(name, Some(site), file)?);
    }
    for name in file.matrix.iter().flat_map(|matrix| &matrix.get_ref().sites) {
        let name = site_name(name)?;
        if !sites.iter().any(|known| known.name == name) {
            sites.push(a_site(name, None, file)?);
        }
    }
    match sites.len() {
        0..=MAX_SITES => Ok(sites),
        count => Err(Mistake { span: None, cause: format!("{count} sites are more than {MAX_SITES}") }),
    }
}

fn site_name(name: &Spanned<String>) -> Result<SiteName, Mistake> {
    SiteName::parse(name.get_ref()).map_err(|error| Mistake::at(name.span(), error.to_string()))
}

fn a_site(name: SiteName, own: Option<&FileSite>, file: &File) -> Result<Site, Mistake> {
    let gate = match own.and_then(|own| own.private) {
        None => Gate::Open,
        Some(Private::Outbound) => Gate::Outbound,
        Some(Private::Nat) => Gate::Nat,
    };
    let shared = || file.defaults.storage.as_ref().map(|folder| folder.join(name.as_str()));
    let settings = file.sysctl.iter().chain(own.iter().flat_map(|own| &own.sysctl));
    let sysctl = settings.map(|(key, value)| setting(key, value)).collect::<Result<_, _>>()?;
    Ok(Site {
        gate,
        pop: own.and_then(|own| own.pop).unwrap_or(file.defaults.pop),
        storage: own.and_then(|own| own.storage.clone()).or_else(shared),
        sysctl,
        name,
    })
}

/// Settings outside `net.` are the whole machine's, not a namespace's.
fn setting(key: &Spanned<String>, value: &Setting) -> Result<(String, String), Mistake> {
    if !key.get_ref().starts_with("net.") {
        return Err(Mistake::at(
            key.span(),
            format!("`{}` is no setting of a site's network", key.get_ref()),
        ));
    }
    let text = match value {
        Setting::Text(text) => text.clone(),
        Setting::Number(number) => number.to_string(),
    };
    Ok((key.get_ref().clone(), text))
}

/// `kek` on path 1 is named `kek-1`, so no site may be.
fn unique_names(topology: &Topology) -> Result<(), Mistake> {
    let names: HashSet<String> = topology.sites.iter().map(|site| site.name.to_string()).collect();
    let taken =
        |site: &Site| (0..MAX_PATHS).map(|path| format!("{}-{path}", site.name)).find(|n| names.contains(n));
    match topology.sites.iter().find_map(taken) {
        Some(name) => Err(Mistake {
            span: None,
            cause: format!("a site cannot be called `{name}`: paths have such names"),
        }),
        None => Ok(()),
    }
}

fn square<T>(rows: Option<&Spanned<Vec<Vec<T>>>>, size: usize, name: &str) -> Result<(), Mistake> {
    let Some(rows) = rows else { return Ok(()) };
    let good = rows.get_ref().len() == size && rows.get_ref().iter().all(|row| row.len() == size);
    if good {
        return Ok(());
    }
    Err(Mistake::at(rows.span(), format!("`{name}` needs {size} rows of {size}, one for each of `sites`")))
}

fn one_way(rtt_ms: f64) -> Result<Delay, String> {
    format!("{rtt_ms}ms").parse::<Delay>().map(half)
}

/// The rate of a link on which one TCP stream carries `goodput` MB/s: headers of 52 bytes in each packet, 14 more in
/// each frame.
fn rate_for(goodput_mb_s: f64, mtu: u32) -> Result<Rate, String> {
    let bits = goodput_mb_s * 8e6 * f64::from(mtu + 14) / f64::from(mtu - 52);
    bits.to_string().parse()
}

fn find(topology: &Topology, name: &Spanned<String>) -> Result<usize, Mistake> {
    let unknown =
        || Mistake::at(name.span(), format!("no site `{}`{}", name.get_ref(), topology.hint(name.get_ref())));
    topology.site(name.get_ref()).ok_or_else(unknown)
}

// ---- words for mistakes ----------------------------------------------------------------------------------------------

fn line_of(text: &str, span: Range<usize>) -> usize {
    text.as_bytes().iter().take(span.start).filter(|&&b| b == b'\n').count() + 1
}

/// Adds "did you mean" to the parser's message, which lists the expected words.
fn explain(message: &str) -> String {
    let message = message.trim_end();
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field") || message.starts_with("unknown variant"), words.next()) {
        (true, Some(unknown)) => format!("{message}{}", suggestion(unknown, words)),
        _ => message.into(),
    }
}

fn suggestion<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    renkei_config::nearest(unknown, known).map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Topology, Error> {
        Topology::parse(text, Path::new("t.toml"), None)
    }

    const TWO: &str = "name = 'two'\n[[site]]\nname = 'kek'\n[[site]]\nname = 'titech'\n";

    fn two(rest: &str) -> Result<Topology, Error> {
        parse(&format!("{TWO}{rest}"))
    }

    #[test]
    fn a_link_between_two_sites_has_two_directions() {
        let text =
            "[[link]]\nbetween = ['kek', 'titech']\nrtt = '6ms'\nrate = '1G'\nback = { rate = '10M' }\n";
        let topology = two(text).unwrap();
        let [there, back] = &topology.links[..] else { panic!("{:?}", topology.links) };
        assert_eq!((there.shape.rate(), back.shape.rate()), (Some(1_000_000_000), Some(10_000_000)));
        assert_eq!(topology.round_trip(there), Duration::from_millis(6));
        assert_eq!(topology.link_name(back), "titech->kek");
    }

    #[test]
    fn defaults_are_below_all_links_and_sites() {
        let topology = parse(
            "name = 'x'\n[defaults]\npop = true\nrate = '5G'\nmtu = 9000\n[[site]]\nname = 'a'\n\
             [[site]]\nname = 'b'\npop = false\nprivate = 'nat'\n\
             [[link]]\nfrom = 'a'\nto = 'b'\ndelay = '1ms'\n[sysctl]\n'net.ipv4.tcp_sack' = 1\n",
        )
        .unwrap();
        let shape = &topology.links[0].shape;
        assert_eq!(
            (shape.rate(), shape.mtu(), shape.delay()),
            (Some(5_000_000_000), 9000, Duration::from_millis(1))
        );
        assert_eq!((topology.sites[0].pop, topology.sites[1].pop), (true, false));
        assert_eq!((topology.sites[0].gate, topology.sites[1].gate), (Gate::Open, Gate::Nat));
        assert_eq!(topology.sites[1].sysctl["net.ipv4.tcp_sack"], "1");
    }

    #[test]
    fn a_matrix_gives_every_direction_and_links_change_it() {
        let topology = parse(
            "name = 'm'\n[matrix]\nsites = ['a', 'b', 'c']\n\
             rtt_ms = [[0, 10, 20], [12, 0, 4], [20, 4, 0]]\n\
             goodput_mb_s = [[0, 100, 50], [25, 0, 4], [1, 2, 0]]\n\
             [[link]]\nbetween = ['a', 'c']\nloss = '1%'\n",
        )
        .unwrap();
        assert_eq!(topology.links.len(), 6);
        let link = |name: &str| topology.links[topology.select(name).unwrap()[0]].clone();
        assert_eq!(topology.round_trip(&link("a->b")), Duration::from_millis(11));
        let expected = 100.0 * 8e6 * 1514.0 / 1448.0;
        assert!((link("a->b").shape.rate().unwrap() as f64 - expected).abs() < 1.0);
        assert_eq!(link("a->c").shape.loss.unwrap().share, 0.01);
        assert!(link("a->c").shape.rate().is_some() && link("a->b").shape.loss.is_none());
    }

    #[test]
    fn parallel_paths_are_links_of_their_own() {
        let topology = two("[[link]]\nbetween = ['kek', 'titech']\nrate = '1G'\n\
             [[link]]\nbetween = ['kek', 'titech']\nrate = '2G'\npath = 2\n")
        .unwrap();
        assert_eq!((topology.paths(), topology.paths_of(1)), (3, vec![0, 2]));
        assert_eq!(topology.select("kek..titech").unwrap().len(), 4);
        assert_eq!(topology.select("kek->titech/2").unwrap(), [2]);
        assert_eq!(topology.select("kek").unwrap().len(), 4);
        for bad in ["kek..kekk", "kek..titech/1", "kek..titech/x", "kek..kek"] {
            assert_eq!(topology.select(bad).unwrap_err().code, Code::LabNameUnknown, "{bad}");
        }
        assert!(topology.select("kekk").unwrap_err().cause.contains("did you mean `kek`?"));
    }

    #[test]
    fn mistakes_name_the_line_and_a_suggestion() {
        for (rest, line, word) in [
            ("[[link]]\nbetwen = ['kek', 'titech']\n", 7, "did you mean `between`?"),
            ("[[link]]\nbetween = ['kek', 'titec']\n", 7, "did you mean `titech`?"),
            ("[[link]]\nbetween = ['kek', 'titech']\nrate = '10 parsec'\n", 8, "no unit"),
            ("[[link]]\nbetween = ['kek', 'titech']\nloss = '200%'\n", 8, "more than the whole"),
            ("[[link]]\nfrom = 'kek'\n", 6, "either `between"),
            ("[[link]]\nbetween = ['kek', 'kek']\n", 6, "two sites"),
            ("[[link]]\nbetween = ['kek', 'titech']\nrtt='1ms'\ndelay='1ms'\n", 6, "not both"),
            ("[[link]]\nfrom='kek'\nto='titech'\n[[link]]\nfrom='kek'\nto='titech'\n", 9, "twice"),
            ("[[site]]\nname = 'kek'\n", 7, "two sites"),
            ("[[site]]\nname = 'KEK'\n", 7, "KEK"),
            ("[[site]]\nname = 'x'\nprivate = 'natt'\n", 8, "did you mean `nat`?"),
            ("[matrix]\nsites = ['kek', 'titech']\nrtt_ms = [[0, 1]]\n", 8, "2 rows of 2"),
            ("[sysctl]\n'vm.swappiness' = 1\n", 7, "no setting of a site's network"),
            ("[default]\nmtu = 9000\n", 6, "did you mean `defaults`?"),
        ] {
            let error = two(rest).unwrap_err();
            assert_eq!(error.code, Code::TopologyInvalid, "{rest}");
            assert_eq!(error.subject, format!("t.toml:{line}"), "{rest}: {error}");
            assert!(error.cause.contains(word), "{rest}: {error}");
        }
        assert!(two("[[site]]\nname = 'kek-1'\n").unwrap_err().cause.contains("kek-1"));
        assert!(parse("name = 'Bad'\n").unwrap_err().cause.contains("no name for a lab"));
        assert!(parse("name = 'empty'\n").unwrap_err().cause.contains("no [[site]]"));
    }
}
