//! Constant parameters and arrays.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, learnable};

#[data_parallel]
struct Grid<const ROWS: usize, const COLUMNS: usize> {
    cells: [[Tensor; COLUMNS]; ROWS],
}

#[test]
fn every_cell_is_a_variable() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let grid = Grid { cells: [[learnable(), learnable()], [learnable(), learnable()]] };
    let report = grid.register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["cells[0][0]", "cells[0][1]", "cells[1][0]", "cells[1][1]"]);
    assert_eq!(report.late().last(), Some("cells.1.1"));
}

#[cfg(not(test))]
fn main() {}
