//! Holds the dependencies of the programs in `programs/`; has no code of its own.
