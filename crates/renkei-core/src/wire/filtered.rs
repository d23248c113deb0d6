//! Requests about a subset of a tree's names: the filter travels before the request, as [`Control::Filter`].
//!
//! [`Control::Filter`]: super::message::Control::Filter

use super::message::Request;
use super::queue::Submission;
use crate::mover::filter::Filter;

impl Request {
    /// The filter on its names, if there is one.
    pub fn filter(&self) -> Option<&Filter> {
        let filter = match self {
            Self::OpenReceive(open) | Self::Grant { open, .. } => Some(&open.options.filter),
            Self::OpenSend(send) | Self::Push { send, .. } | Self::PushCopy { send, .. } => {
                Some(&send.filter)
            }
            Self::OpenCopy { copy, .. } => Some(&copy.options.filter),
            Self::SubmitCopies(submissions) => submissions.first().map(|first| &first.send.filter),
            _ => None,
        };
        filter.filter(|filter| !filter.is_empty())
    }

    /// Whether the names of arriving files are reported.
    pub fn tells_names(&self) -> bool {
        matches!(self, Self::Push { send, .. } | Self::PushCopy { send, .. } if send.tell_names)
    }

    /// Sets whether the names of arriving files are reported.
    pub fn set_tell_names(&mut self, tell_names: bool) {
        if let Self::Push { send, .. } | Self::PushCopy { send, .. } = self {
            send.tell_names = tell_names;
        }
    }

    /// Sets the filter.
    pub fn set_filter(&mut self, filter: &Filter) {
        match self {
            Self::OpenReceive(open) | Self::Grant { open, .. } => open.options.filter = filter.clone(),
            Self::OpenSend(send) | Self::Push { send, .. } => send.filter = filter.clone(),
            Self::OpenCopy { copy, .. } => copy.options.filter = filter.clone(),
            Self::PushCopy { send, copy, .. } => {
                send.filter = filter.clone();
                copy.options.filter = filter.clone();
            }
            Self::SubmitCopies(submissions) => submissions.iter_mut().for_each(|one| one.set_filter(filter)),
            _ => {}
        }
    }
}

impl Submission {
    /// Sets the filter.
    pub fn set_filter(&mut self, filter: &Filter) {
        self.send.filter = filter.clone();
        self.copy.options.filter = filter.clone();
    }
}
