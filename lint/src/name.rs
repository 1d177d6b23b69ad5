//! Interned names: cheap to copy and to compare. Interned text lives as long as the program.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, PoisonError};

use rustc_hash::FxHashMap;

/// An interned string. Equal text means equal pointer; one word, since runs keep millions.
#[derive(Clone, Copy)]
pub struct Name(&'static &'static str);

static POOL: LazyLock<Mutex<FxHashMap<&'static str, Name>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Spares the lock for names that this thread has seen.
    static SEEN: RefCell<FxHashMap<&'static str, Name>> = RefCell::default();
}

impl Name {
    pub fn new(text: &str) -> Self {
        SEEN.with_borrow_mut(|seen| {
            if let Some(&name) = seen.get(text) {
                return name;
            }
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let name = pool.get(text).copied().unwrap_or_else(|| {
                let text: &'static str = Box::leak(text.into());
                let name = Self(Box::leak(Box::new(text)));
                pool.insert(text, name);
                name
            });
            seen.insert(name.as_str(), name);
            name
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
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        if self == other { Ordering::Equal } else { self.as_str().cmp(other.as_str()) }
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.0).hash(state);
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
