//! Rules of identity: who a principal is and which account it becomes.
