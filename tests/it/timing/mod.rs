//! Tests of how soon checks are decided. Each runs alone, because others would use its CPU time: see
//! `make integration`.

mod breaker;
mod holds;
mod overload;
mod transport;
