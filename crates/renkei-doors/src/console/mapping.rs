//! The mapping of principals to accounts: the rules in order, and a test of one principal.

use super::failure;
use super::html::{Facts, Html, Table, text};
use super::page::{Page, Tab};
use renkei_core::identity::{AccountRule, Rule};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::inventory::{Map, Tested};
use serde::Deserialize;
use std::sync::Arc;

/// The fields of the form.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct MappingQuery {
    who: String,
}

/// Makes the page: all rules for the administrator, the own account for a user.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor, asked: &MappingQuery) -> Page {
    let page = Page::new(Tab::Mapping, "Mapping");
    if let Some(access) = visitor.caller().user() {
        let mut facts = Facts::new();
        facts
            .text("You are", &access.principal)
            .text("Account here", &access.account.name)
            .text("Rule", &access.rule);
        return page.part("own", "Your account", facts.finish());
    }
    let map = site.monitor().map_rules();
    let (deny, allow): (Vec<&Rule>, Vec<&Rule>) =
        map.rules.iter().partition(|rule| rule.account == AccountRule::Nobody);
    page.still("test", "Who would this be?", test(site, asked))
        .part("deny", "Denied", deny_table(&deny))
        .part("rules", "Rules", rules(&map, &allow))
        .every(10)
}

fn test(site: &Site, asked: &MappingQuery) -> Html {
    let mut html = Html::of(
        "<form class=\"filter\" method=\"get\" action=\"/console/mapping\"><label>Principal <input name=\"who\" \
         value=\"{}\" placeholder=\"alice@example\" maxlength=\"200\" required></label><button>Test</button></form>",
        &[&asked.who],
    );
    if asked.who.trim().is_empty() {
        return html;
    }
    match site.monitor().test_map(asked.who.trim()) {
        Ok(tested) => html.add(answer(&tested)),
        Err(error) => html.add(failure::whole(&error)),
    };
    html
}

/// The verdict, as `renkei map test` words it.
fn answer(tested: &Tested) -> Html {
    let Tested { principal, verdict, outcome } = tested;
    let mut html = match &verdict.account {
        Some(account) => Html::of(
            "<p class=\"answer\"><bdi>{}</bdi> becomes <b><bdi>{}</bdi></b>: ",
            &[principal, account],
        ),
        None => Html::of("<p class=\"answer badly\"><bdi>{}</bdi> is refused: ", &[principal]),
    };
    html.add(Html::marked(&verdict.why.to_string())).put("</p>", &[]);
    match outcome {
        Ok(account) => {
            let groups: Vec<String> = account.groups.iter().map(u32::to_string).collect();
            html.put("<p>uid {}, gid {}, groups {}</p>", &[&account.uid, &account.gid, &groups.join(" ")]);
        }
        Err(error) if verdict.account.is_some() => {
            html.put("<p class=\"badly\">But it is refused:</p>", &[]).add(failure::whole(error));
        }
        Err(_) => {}
    }
    html
}

fn rules(map: &Map, rules: &[&Rule]) -> Html {
    let mut table = Table::new(&["Line", "Principal", "Account"]);
    for rule in rules {
        table.row(vec![text(rule.line), text(&rule.pattern), account(&rule.account)]);
    }
    let own = match map.own_users {
        true => "Users of this site who match no rule become the account of the same name (`map_own_users`).",
        false => "Users of this site need a rule as all others do (`map_own_users` is off).",
    };
    let mut html = Html::of(
        "<p>A rule for one user comes before rules for a whole site; of two of the same kind the first counts. ",
        &[],
    );
    html.add(Html::marked(own));
    html.put(" A rule with * leads to no account with a user id below {}.</p>", &[&map.min_uid]);
    html.add(table.finish("Rules in the order of the file", "There is no rule."));
    html
}

fn account(rule: &AccountRule) -> Html {
    match rule {
        AccountRule::Named(name) => text(name),
        AccountRule::SameName => Html::of("the account of the same name", &[]),
        AccountRule::Nobody => Html::of("none", &[]),
    }
}

fn deny_table(rules: &[&Rule]) -> Html {
    let mut table = Table::new(&["Line", "Principal"]);
    for rule in rules {
        table.row(vec![text(rule.line), text(&rule.pattern)]);
    }
    table.finish("Who is denied, whatever other rules say", "Nobody is denied.")
}
