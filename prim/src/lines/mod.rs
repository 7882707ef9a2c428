//! Cache lines that one side has to itself.
//!
//! - Reading order: `own_line.rs` (a value apart from its neighbours) · `thread_cells.rs` (counts
//!   apart by thread).

mod own_line;
mod thread_cells;

pub use self::own_line::OwnLine;
pub use self::thread_cells::{CellCount, ThreadCells};
