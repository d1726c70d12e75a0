//! The permits that this process holds, of policies with a limit on how many are held at a time.
//!
//! `key_holds` counts what is held of one key, and collects the checks that want more while a call of the key is in
//! flight: a state machine. `table` has all keys, and sends the calls. `pending_hold` is one of the checks, and
//! `renewal` the task that renews what is held before it ends. `spare` has the permits that a lease keeps.
//!
//! One call of a key is in flight at a time, in all runtimes together. It reports how many permits the process
//! holds (`store/hold.rs`), so what the server knows is right after each call, whatever happened to earlier ones:
//!
//! - A check that was cancelled, or failed without a reply, may have been charged. The next call corrects that.
//! - To give back permits, the process lowers its count and makes a call. If the call is lost, the next one reports the
//!   same.
//! - What was decided by the share of this process, while the server failed, is counted like everything else.
//! - A server that has lost its data learns everything anew.
//!
//! The price is that the checks of a key wait for the call before theirs. They share one call then.

mod key_holds;
mod pending_hold;
mod renewal;
mod spare;
mod table;

pub(super) use self::pending_hold::PendingHold;
pub(super) use self::table::Holds;
