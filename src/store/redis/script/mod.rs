//! The Lua scripts: their text, their arguments, and their replies.
//!
//! `scripts` has one for each combination of algorithms. `assembly` puts it together, from `section`s of the
//! files in `lua/`, and `fragment` is what a script knows of an algorithm. `policy` is what is computed once
//! for a policy: its script, its parameters, and the names of its buckets (`key_encoder`). `reply` reads what a
//! script found, and `value` what is in a bucket, which has one of two forms: `short` and `packed`. `digits`
//! and `double` are how numbers are written there.
//!
//! Of the files in `lua/`, a script has what it needs of `frame`, `decide`, `other`, `one_policy` or
//! `many_policies`, `short` or `packed` (the forms of a value), and a file for each algorithm. `doubt`, the
//! `token_bucket_*` and `calendar_window` add sections to those of another file, or replace them. `fleet` and
//! `block_list` are scripts of their own.

mod assembly;
mod digits;
mod double;
mod fragment;
mod key_encoder;
pub(super) mod packed;
mod policy;
pub(super) mod reply;
mod scripts;
mod section;
mod short;
mod value;

pub(super) use self::key_encoder::{SLOTS, slot_of};
pub(super) use self::policy::RedisPolicy;
pub(super) use self::reply::Found;
pub(super) use self::scripts::Script;
#[cfg(test)]
pub(super) use self::{double::pack, reply::Stored};
