//! Where the program called: the line that a report shows is the user's own, never one of this crate.
//!
//! Collectives that this crate makes on its user's behalf, such as those of gradient buckets, are made deep inside a
//! backward pass. So the functions that a user calls note their caller in the thread, and the collectives below take the
//! innermost line that was noted, and say what they are for.

use std::{cell::Cell, fmt, panic::Location};

/// A line of the program, and what a collective that was not written there is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSite {
    location: &'static Location<'static>,
    purpose: Option<Purpose>,
}

/// What a collective that this crate makes on its user's behalf is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A bucket of gradients, counted from 1.
    Bucket { number: usize, of: usize },
    /// Anything else.
    Of(&'static str),
}

thread_local! {
    static LOCATION: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    static PURPOSE: Cell<Option<Purpose>> = const { Cell::new(None) };
}

/// Restores what the thread had noted before.
#[must_use = "the line is forgotten when this is dropped"]
pub(crate) struct Noted {
    location: Option<&'static Location<'static>>,
    purpose: Option<Purpose>,
}

/// Notes the caller's line for the collectives made until the guard is dropped.
#[track_caller]
pub(crate) fn enter() -> Noted {
    enter_at(Location::caller(), None)
}

/// As [`enter`], for a line that was noted earlier, and what the collectives are for if they are not written there.
pub(crate) fn enter_at(location: &'static Location<'static>, purpose: Option<Purpose>) -> Noted {
    let before = Noted { location: LOCATION.get(), purpose: PURPOSE.get() };
    if !is_ours(location) {
        LOCATION.set(Some(location));
    }
    PURPOSE.set(purpose.or(before.purpose));
    before
}

/// Notes what the collectives made until the guard is dropped are for.
pub(crate) fn on_behalf_of(purpose: Purpose) -> Noted {
    let before = Noted { location: LOCATION.get(), purpose: PURPOSE.get() };
    PURPOSE.set(Some(purpose));
    before
}

impl Drop for Noted {
    fn drop(&mut self) {
        LOCATION.set(self.location);
        PURPOSE.set(self.purpose);
    }
}

/// The caller's line, or the innermost noted one if the caller is this crate.
#[track_caller]
pub(crate) fn location() -> &'static Location<'static> {
    let caller = Location::caller();
    if is_ours(caller) { LOCATION.get().unwrap_or(caller) } else { caller }
}

impl CallSite {
    /// The site of a collective that is being called.
    #[track_caller]
    pub(crate) fn here() -> Self {
        Self { location: location(), purpose: PURPOSE.get() }
    }

    /// `file:line:column`.
    pub(crate) fn line(&self) -> String {
        self.location.to_string()
    }

    pub(crate) fn purpose(&self) -> Option<String> {
        self.purpose.map(|purpose| purpose.to_string())
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { number, of } => write!(f, "bucket {number} of {of}"),
            Self::Of(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Some(purpose) => write!(f, "{} ({purpose})", self.location),
            None => write!(f, "{}", self.location),
        }
    }
}

/// Whether a line is one of this crate's own sources. Its tests count as a user's.
fn is_ours(location: &Location<'_>) -> bool {
    // The compiler gives every file of a crate the same beginning.
    let folder = file!().as_bytes();
    let folder = &folder[..folder.len() - "site.rs".len()];
    location.file().as_bytes().starts_with(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_this_crate_gives_way_to_the_one_that_was_noted() {
        let users: &'static Location<'static> = Location::caller();
        assert!(is_ours(users), "{users}");
        assert_eq!(CallSite::here().purpose(), None);
        // A line outside of this crate: that of the standard library that called the closure.
        let outside = [()].map(|()| outside()).into_iter().next().unwrap();
        assert!(!is_ours(outside), "{outside}");
        let _entered = enter_at(outside, None);
        {
            let _bucket = on_behalf_of(Purpose::Bucket { number: 3, of: 7 });
            let site = CallSite::here();
            assert_eq!(site.location, outside);
            assert_eq!(site.to_string(), format!("{outside} (bucket 3 of 7)"));
        }
        assert_eq!(CallSite::here().to_string(), outside.to_string());
    }

    fn outside() -> &'static Location<'static> {
        // `unwrap` is `#[track_caller]`, so a panic tells a line of ours; a plain function pointer called by the
        // standard library tells the standard library's.
        let call: fn() -> &'static Location<'static> = Location::caller;
        std::iter::repeat_with(call).next().unwrap()
    }
}
