//! Requests about a subset of a tree's names: the filter travels before the request, as [`Control::Filter`].
//!
//! [`Control::Filter`]: super::message::Control::Filter

use super::message::{OpenFound, Request};
use super::queue::Submission;
use crate::mover::filter::Filter;

impl Request {
    /// The filter on its names, if there is one.
    pub fn filter(&self) -> Option<&Filter> {
        fn chosen(open: &OpenFound) -> Option<&Filter> {
            open.choices.first().map(|(_, choice)| &choice.options.filter)
        }
        let filter = match self {
            Self::OpenReceive(open) | Self::Grant { open, .. } => Some(&open.options.filter),
            Self::OpenSend(send)
            | Self::Push { send, .. }
            | Self::PushFound { send, .. }
            | Self::PushCopy { send, .. } => Some(&send.filter),
            Self::OpenCopy { copy, .. } => Some(&copy.options.filter),
            Self::OpenFound(open) | Self::ForUser { open, .. } => chosen(open),
            Self::Submit(submissions) => submissions.first().map(|submission| &submission.send.filter),
            _ => None,
        };
        filter.filter(|filter| !filter.is_empty())
    }

    /// Whether the names of arriving files are reported.
    pub fn tells_names(&self) -> bool {
        let (Self::Push { send, .. } | Self::PushFound { send, .. } | Self::PushCopy { send, .. }) = self
        else {
            return false;
        };
        send.tell_names
    }

    /// Sets whether the names of arriving files are reported.
    pub fn set_tell_names(&mut self, tell_names: bool) {
        if let Self::Push { send, .. } | Self::PushFound { send, .. } | Self::PushCopy { send, .. } = self {
            send.tell_names = tell_names;
        }
    }

    /// Sets the filter.
    pub fn set_filter(&mut self, filter: &Filter) {
        match self {
            Self::OpenReceive(open) | Self::Grant { open, .. } => open.options.filter = filter.clone(),
            Self::OpenSend(send) | Self::Push { send, .. } => send.filter = filter.clone(),
            Self::OpenFound(open) | Self::ForUser { open, .. } => open.set_filter(filter),
            Self::PushFound { send, open, .. } => {
                send.filter = filter.clone();
                open.set_filter(filter);
            }
            Self::OpenCopy { copy, .. } => copy.options.filter = filter.clone(),
            Self::PushCopy { send, copy, .. } => {
                send.filter = filter.clone();
                copy.options.filter = filter.clone();
            }
            Self::Submit(submissions) => submissions.iter_mut().for_each(|all| all.set_filter(filter)),
            _ => {}
        }
    }
}

impl OpenFound {
    /// Sets the filter.
    pub fn set_filter(&mut self, filter: &Filter) {
        for (_, choice) in &mut self.choices {
            choice.options.filter = filter.clone();
        }
    }
}

impl Submission {
    /// Sets the filter.
    pub fn set_filter(&mut self, filter: &Filter) {
        self.send.filter = filter.clone();
        self.open.set_filter(filter);
    }
}
