//! Which ways lead to a site: from what can reach what, in the order to try them, each with its reason.
//!
//! Whoever wants to reach a site knows its card (endpoints, the PoPs it keeps lines to), the lines that lead here, the
//! PoP of its own site, what the administrator pinned or forbade, and what failed a moment ago. [`plan`] puts this
//! together; [`Failures`] remembers. Both know neither clock nor network.

mod failures;
mod inside;
mod plan;

pub use failures::Failures;
pub use inside::is_inside;
pub use plan::{Facts, Rule, Step, Way, plan};
