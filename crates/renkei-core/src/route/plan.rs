//! The planner: candidates first, then rules; recently failed ways go to the end.

use crate::path::SiteName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A way to get a connection to a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// Dial an endpoint of the site.
    Direct,
    /// Call the site over the line it keeps to this PoP; it dials back.
    Line,
    /// Relay through the PoP of another site.
    Through(SiteName),
}

/// A way with the reason why it is a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The way.
    pub way: Way,
    /// The reason why it is a candidate.
    pub why: String,
    /// The reason why it must not be used, if there is one; such a step stands at the end, for display.
    pub against: Option<String>,
    /// Time since it failed, if that was recent.
    pub failed: Option<Duration>,
}

/// An administrator's rule for the ways to a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The only way allowed.
    pub pin: Option<Way>,
    /// Ways that are forbidden.
    pub forbid: Vec<Way>,
}

/// The inputs of the planner.
pub struct Facts<'a> {
    /// The site to reach.
    pub to: &'a SiteName,
    /// Whether its card names endpoints.
    pub has_endpoints: bool,
    /// The PoPs it keeps lines to, by its card.
    pub via: &'a [SiteName],
    /// Whether it keeps a line to this PoP now.
    pub has_line: bool,
    /// The site of the PoP that plans, if a PoP does.
    pub here: Option<&'a SiteName>,
    /// The site of the user that plans, if no PoP does.
    pub home: Option<&'a SiteName>,
    /// The PoPs that the own site keeps lines to.
    pub own_via: &'a [SiteName],
    /// Number of PoPs that the way may still pass through.
    pub further: u8,
    /// Whether a site is known, with endpoints to dial.
    pub can_dial: &'a dyn Fn(&SiteName) -> bool,
    /// The administrator's rule.
    pub rule: &'a Rule,
    /// Time since a way to the site failed, if that was recent.
    pub failed: &'a dyn Fn(&Way) -> Option<Duration>,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Direct => f.write_str("direct"),
            Way::Line => f.write_str("line"),
            Way::Through(site) => write!(f, "{site}"),
        }
    }
}

impl Way {
    /// Parses the name of a way: `direct`, `line`, or the site to relay through.
    pub fn parse(text: &str) -> Option<Way> {
        match text {
            "direct" => Some(Way::Direct),
            "line" => Some(Way::Line),
            site => SiteName::parse(site).ok().map(Way::Through),
        }
    }
}

/// The ways to a site, best first; those that must not be used come last.
pub fn plan(facts: &Facts<'_>) -> Vec<Step> {
    let mut steps = candidates(facts);
    steps.iter_mut().for_each(|step| step.against = against(&step.way, facts.rule));
    // The sort is stable: of the failed ways, the one that failed longest ago is tried first.
    steps.sort_by_key(|step| {
        (step.against.is_some(), step.failed.map(|since| Duration::MAX.saturating_sub(since)))
    });
    steps
}

fn candidates(facts: &Facts<'_>) -> Vec<Step> {
    let to = facts.to;
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |way: Way, why: String| {
        if !steps.iter().any(|step| step.way == way) {
            let failed = (facts.failed)(&way);
            steps.push(Step { way, why, against: None, failed });
        }
    };
    if facts.has_endpoints {
        add(Way::Direct, format!("the card of {to} names where to dial"));
    }
    if facts.has_line {
        add(Way::Line, format!("{to} keeps a line to this PoP and connects when called"));
    }
    for (relays, why) in relays(facts) {
        for relay in relays.iter().filter(|relay| may_relay(relay, facts)) {
            add(Way::Through(relay.clone()), why.clone());
        }
    }
    steps
}

/// The possible relays, with the reason, nearest to the site first.
fn relays<'a>(facts: &Facts<'a>) -> [(&'a [SiteName], String); 3] {
    let home = facts.home.map(std::slice::from_ref).unwrap_or_default();
    [
        (facts.via, format!("{} keeps a line to it", facts.to)),
        (home, "it is the PoP of the own site".to_owned()),
        (facts.own_via, "the own site keeps a line to it".to_owned()),
    ]
}

fn may_relay(relay: &SiteName, facts: &Facts<'_>) -> bool {
    facts.further > 0 && relay != facts.to && Some(relay) != facts.here && (facts.can_dial)(relay)
}

fn against(way: &Way, rule: &Rule) -> Option<String> {
    match &rule.pin {
        Some(pin) if pin != way => return Some(format!("the administrator pinned the way `{pin}`")),
        _ => {}
    }
    rule.forbid.contains(way).then(|| "the administrator forbids it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> SiteName {
        SiteName::parse(name).unwrap()
    }

    /// The view of a user of `home` on `lab`, which keeps a line to `hub`.
    struct World {
        to: &'static str,
        has_endpoints: bool,
        has_line: bool,
        here: Option<SiteName>,
        own_via: Vec<SiteName>,
        further: u8,
        can_dial: fn(&SiteName) -> bool,
        rule: Rule,
        failed: fn(&Way) -> Option<Duration>,
    }

    impl Default for World {
        fn default() -> Self {
            World {
                to: "lab",
                has_endpoints: false,
                has_line: false,
                here: None,
                own_via: Vec::new(),
                further: 2,
                can_dial: |_| true,
                rule: Rule::default(),
                failed: |_| None,
            }
        }
    }

    fn ways(world: World) -> Vec<String> {
        let facts = Facts {
            to: &site(world.to),
            has_endpoints: world.has_endpoints,
            via: &[site("hub")],
            has_line: world.has_line,
            here: world.here.as_ref(),
            home: Some(&site("home")),
            own_via: &world.own_via,
            further: world.further,
            can_dial: &world.can_dial,
            rule: &world.rule,
            failed: &world.failed,
        };
        let shown = |step: &Step| match step.against {
            Some(_) => format!("not {}", step.way),
            None => step.way.to_string(),
        };
        plan(&facts).iter().map(shown).collect()
    }

    #[test]
    fn the_nearest_route_is_first() {
        let all = || World::default();
        assert_eq!(ways(all()), ["hub", "home"]);
        assert_eq!(ways(World { has_endpoints: true, ..all() }), ["direct", "hub", "home"]);
        assert_eq!(ways(World { has_line: true, ..all() }), ["line", "hub", "home"]);
        assert_eq!(ways(World { further: 0, ..all() }), Vec::<String>::new());
    }

    #[test]
    fn a_site_is_no_relay_for_itself() {
        let all = || World::default();
        assert_eq!(ways(World { here: Some(site("hub")), ..all() }), ["home"]);
        assert_eq!(ways(World { to: "hub", ..all() }), ["home"]);
        assert_eq!(ways(World { can_dial: |site| site.as_str() == "home", ..all() }), ["home"]);
        let own_via = vec![site("hub"), site("other")];
        assert_eq!(ways(World { own_via, ..all() }), ["hub", "home", "other"]);
    }

    #[test]
    fn an_administrator_pins_and_forbids_routes() {
        let rule = Rule { pin: Way::parse("home"), forbid: Vec::new() };
        assert_eq!(ways(World { rule, ..World::default() }), ["home", "not hub"]);
        let rule = Rule { pin: None, forbid: vec![Way::Direct, Way::Through(site("hub"))] };
        let world = World { has_endpoints: true, rule, ..World::default() };
        assert_eq!(ways(world), ["home", "not direct", "not hub"]);
    }

    #[test]
    fn failed_routes_are_tried_last_and_the_oldest_failure_first() {
        let failed = |way: &Way| match way {
            Way::Direct => Some(Duration::from_secs(1)),
            Way::Through(site) if site.as_str() == "hub" => Some(Duration::from_secs(9)),
            _ => None,
        };
        let world = World { has_endpoints: true, failed, ..World::default() };
        assert_eq!(ways(world), ["home", "hub", "direct"]);
    }

    #[test]
    fn routes_have_names() {
        for name in ["direct", "line", "kek"] {
            assert_eq!(Way::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(Way::parse("Not a site"), None);
    }
}
