//! Interned names: cheap to copy and to compare. Interned text lives as long as the program.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, PoisonError};

use rustc_hash::FxHashSet;

/// An interned string. Equal text means equal pointer.
#[derive(Clone, Copy)]
pub struct Name(&'static str);

static POOL: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Spares the lock for names that this thread has seen.
    static SEEN: RefCell<FxHashSet<&'static str>> = RefCell::default();
}

impl Name {
    pub fn new(text: &str) -> Self {
        SEEN.with_borrow_mut(|seen| {
            if let Some(&text) = seen.get(text) {
                return Self(text);
            }
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = pool.get(text).copied().unwrap_or_else(|| {
                let kept: &'static str = Box::leak(text.into());
                pool.insert(kept);
                kept
            });
            seen.insert(kept);
            Self(kept)
        })
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Name {}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(other.0)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self::new(&text))
    }
}
