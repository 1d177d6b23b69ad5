//! A table that remembers its answers: a run asks for the same few names over and over.

use std::cell::RefCell;

use rustc_hash::FxHashMap;

use super::{Row, Table};
use crate::model::Name;

/// Answers as the table does. For one thread.
#[derive(Debug)]
pub struct Asked<'t> {
    table: &'t Table,
    /// Rows are kept as their places: references in a cell would tie lifetimes together.
    rows: RefCell<FxHashMap<Name, Option<u32>>>,
    methods: RefCell<FxHashMap<(Name, Name), Option<u32>>>,
    any_methods: RefCell<FxHashMap<Name, Option<u32>>>,
    kinships: RefCell<FxHashMap<(Name, Name), bool>>,
}

impl<'t> Asked<'t> {
    pub fn new(table: &'t Table) -> Self {
        Self {
            table,
            rows: RefCell::default(),
            methods: RefCell::default(),
            any_methods: RefCell::default(),
            kinships: RefCell::default(),
        }
    }

    pub fn table(&self) -> &'t Table {
        self.table
    }

    /// See [`Table::get`].
    pub fn get(&self, name: Name) -> Option<&'t Row> {
        let place = || self.table.get(name).map(|row| row.index);
        self.at(*self.rows.borrow_mut().entry(name).or_insert_with(place))
    }

    /// See [`Table::method`].
    pub fn method(&self, of: Name, method: Name) -> Option<&'t Row> {
        let place = || self.table.method(of, method).map(|row| row.index);
        self.at(*self.methods.borrow_mut().entry((of, method)).or_insert_with(place))
    }

    /// See [`Table::any_method`].
    pub fn any_method(&self, method: Name) -> Option<&'t Row> {
        let place = || self.table.any_method(method).map(|row| row.index);
        self.at(*self.any_methods.borrow_mut().entry(method).or_insert_with(place))
    }

    /// See [`Table::is_a`].
    pub fn is_a(&self, of: Name, base: Name) -> bool {
        let mut kinships = self.kinships.borrow_mut();
        *kinships.entry((of, base)).or_insert_with(|| self.table.is_a(of, base))
    }

    fn at(&self, place: Option<u32>) -> Option<&'t Row> {
        place.map(|place| &self.table.rows[place as usize])
    }
}
