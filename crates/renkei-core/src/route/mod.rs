//! Route selection: the ways to a site, in the order to try them, each with its reason.
//!
//! The inputs are the site's card (endpoints, the PoPs it keeps lines to), the lines that lead here, the PoP of the
//! own site, the administrator's pins and prohibitions, and recent failures. [`plan`] combines them; [`Failures`]
//! remembers. Both use neither clock nor network.

mod failures;
mod inside;
mod plan;
pub mod servers;

pub use failures::Failures;
pub use inside::is_inside;
pub use plan::{Facts, Rule, Step, Way, plan};
