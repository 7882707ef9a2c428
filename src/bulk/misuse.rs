//! Programs that the types of bulk memory reject. Each snippet stands beside the nearest one that
//! compiles, so that it is known to fail for its last line and not for another.
//!
//! Compiled as documentation tests, and nothing else.

/// The vector is the peers' until it is released.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let data = vec![0; 8];
/// let exposed = instance.expose(data, Access::ReadWrite)?;
/// assert_eq!(exposed.release().unwrap().len(), 8);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0382
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let data = vec![0; 8];
/// let exposed = instance.expose(data, Access::ReadWrite)?;
/// assert_eq!(data.len(), 8);
/// # Ok(())
/// # }
/// ```
struct ExposedIsNotReachable;

/// Released is released.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let exposed = instance.expose(vec![0; 8], Access::ReadWrite)?;
/// let handle = exposed.bulk().clone();
/// let data = exposed.release().unwrap();
/// assert_eq!(handle.len(), 8);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0382
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let exposed = instance.expose(vec![0; 8], Access::ReadWrite)?;
/// let handle = exposed.bulk().clone();
/// let data = exposed.release().unwrap();
/// assert_eq!(exposed.bulk().len(), 8);
/// # Ok(())
/// # }
/// ```
struct ReleasedOnce;

/// Memory that peers read is not changed meanwhile.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut data = vec![0; 8];
/// instance.memory().expose_ref(&data, |_bulk| data[0] == 1)?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut data = vec![0; 8];
/// instance.memory().expose_ref(&data, |_bulk| data[0] = 1)?;
/// # Ok(())
/// # }
/// ```
struct LentIsNotChanged;

/// Memory that peers write is not read meanwhile.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut data = vec![0; 8];
/// instance.memory().expose_mut(&mut data, |_bulk| ())?;
/// assert_eq!(data[0], 0);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut data = vec![0; 8];
/// instance.memory().expose_mut(&mut data, |_bulk| assert_eq!(data[0], 0))?;
/// # Ok(())
/// # }
/// ```
struct WrittenIsNotRead;

/// The memory of a scope lives longer than the scope.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let data = vec![0; 8];
/// instance.memory().expose_ref(&data, |bulk| bulk.len())?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0505
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let data = vec![0; 8];
/// instance.memory().expose_ref(&data, |bulk| {
///     drop(data);
///     bulk.len()
/// })?;
/// # Ok(())
/// # }
/// ```
struct TheScopeBorrows;

/// A transfer has its buffer alone.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut buffer = instance.memory().bulk_buffer(8)?;
/// let slice = &buffer[..4];
/// assert_eq!(slice, [0;
/// 4]);
/// instance.pull(peer, remote, 0, &mut buffer, 0..8)?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut buffer = instance.memory().bulk_buffer(8)?;
/// let slice = &buffer[..4];
/// instance.pull(peer, remote, 0, &mut buffer, 0..8)?;
/// assert_eq!(slice, [0;
/// 4]);
/// # Ok(())
/// # }
/// ```
struct TheTransferHasTheBuffer;

/// Nothing points into a buffer that has gone back to its pool.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(8, 1))?;
/// let buffer = pool.get(8)?;
/// let slice = &buffer[..4];
/// assert_eq!(slice, [0;
/// 4]);
/// drop(buffer);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0505
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(8, 1))?;
/// let buffer = pool.get(8)?;
/// let slice = &buffer[..4];
/// drop(buffer);
/// assert_eq!(slice, [0;
/// 4]);
/// # Ok(())
/// # }
/// ```
struct APooledBufferGoesBackOnce;

/// A buffer of a pool is written as a whole.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance) -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::bulk_memory::BulkPoolSpec;
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(8, 1))?;
/// let mut buffer = pool.get(8)?;
/// let mut other = instance.memory().bulk_buffer(8)?;
/// buffer.swap_with_slice(&mut other);
/// # Ok(())
/// # }
/// ```
///
/// But no other buffer takes its place in the pool:
///
/// ```compile_fail,E0277
/// # fn snippet(instance: &margo::Instance) -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::bulk_memory::BulkPoolSpec;
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(8, 1))?;
/// let mut buffer = pool.get(8)?;
/// let mut other = instance.memory().bulk_buffer(1)?;
/// std::mem::swap(&mut *buffer, &mut other);
/// # Ok(())
/// # }
/// ```
struct APooledBufferStaysThatOfItsPool;

/// Several vectors are the peers' until they are released.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let rows = vec![vec![0; 8]; 2];
/// let exposed = instance.expose(rows, Access::ReadWrite)?;
/// assert_eq!(exposed.release().unwrap().len(), 2);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0382
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let rows = vec![vec![0; 8]; 2];
/// let exposed = instance.expose(rows, Access::ReadWrite)?;
/// assert_eq!(rows.len(), 2);
/// # Ok(())
/// # }
/// ```
struct ExposedSegmentsAreNotReachable;

/// None of several slices that peers write is read meanwhile.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let (mut a, mut b) = ([0; 8], [0; 8]);
/// instance.memory().expose_mut_segments(&mut [&mut a, &mut b], |_bulk| ())?;
/// assert_eq!(b[0], 0);
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let (mut a, mut b) = ([0; 8], [0; 8]);
/// instance.memory().expose_mut_segments(&mut [&mut a, &mut b], |_bulk| assert_eq!(b[0], 0))?;
/// # Ok(())
/// # }
/// ```
struct WrittenSegmentsAreNotRead;

/// None of several slices that peers read is changed meanwhile.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let (a, mut b) = ([0; 8], [0; 8]);
/// instance.memory().expose_ref_segments(&[&a, &b], |_bulk| b[0] == 1)?;
/// b[0] = 1;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let (a, mut b) = ([0; 8], [0; 8]);
/// instance.memory().expose_ref_segments(&[&a, &b], |_bulk| b[0] = 1)?;
/// # Ok(())
/// # }
/// ```
struct LentSegmentsAreNotChanged;

/// One piece of memory is not lent twice for writing.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let (mut a, mut b) = ([0; 8], [0; 8]);
/// instance.memory().expose_mut_segments(&mut [&mut a, &mut b], |_bulk| ())?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0499
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut a = [0; 8];
/// instance.memory().expose_mut_segments(&mut [&mut a, &mut a], |_bulk| ())?;
/// # Ok(())
/// # }
/// ```
struct SegmentsAreDisjoint;

/// A transfer has all segments alone.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut rows = instance.memory().bulk_segments(vec![vec![0; 8]; 2])?;
/// let row = rows.segment(0);
/// assert_eq!(row, [0; 8]);
/// instance.pull(peer, remote, 0, &mut rows, 0..16)?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0502
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::{Access, bulk_memory::BulkPoolSpec};
/// let mut rows = instance.memory().bulk_segments(vec![vec![0; 8]; 2])?;
/// let row = rows.segment(0);
/// instance.pull(peer, remote, 0, &mut rows, 0..16)?;
/// assert_eq!(row, [0; 8]);
/// # Ok(())
/// # }
/// ```
struct TheTransferHasTheSegments;

/// Memory that was lent for reading is not written, not by its own process either.
///
/// ```no_run
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::hg::LocalBytes;
/// static TEXT: &[u8] = b"constant";
/// instance.memory().expose_ref(TEXT, |bulk| {
///     let Ok(LocalBytes::Memory(part)) = bulk.local(0, 8) else { return };
///     assert!(part.read_at(0, &mut [0]));
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// But not:
///
/// ```compile_fail,E0599
/// # fn snippet(instance: &margo::Instance, peer: &margo::Addr, remote: &margo::Bulk)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # use margo::hg::LocalBytes;
/// static TEXT: &[u8] = b"constant";
/// instance.memory().expose_ref(TEXT, |bulk| {
///     let Ok(LocalBytes::Memory(part)) = bulk.local(0, 8) else { return };
///     assert!(part.memory().write_at(0, &[0]));
/// })?;
/// # Ok(())
/// # }
/// ```
struct LentIsNotWrittenHere;
