//! The demo's work: TPC-H `orders` and `lineitem`, cut by order key, joined and summed.
//!
//! A block is a length (u32, little-endian) and one Arrow IPC stream of one record batch, so that a
//! consumer can decode what it has read wherever the transport cut the bytes.

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray, UInt32Array};
use arrow::compute::kernels::temporal::{DatePart, date_part};
use arrow::compute::take;
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Int32Type, Int64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{LineItemArrow, OrderArrow};

/// Bytes of the length in front of a block.
const LENGTH_BYTES: usize = 4;
/// Largest block that is decoded, in bytes.
const MAX_BLOCK: usize = 256 * 1024 * 1024;

/// The two input tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// TPC-H orders.
    Orders,
    /// TPC-H lineitem.
    LineItem,
}

impl Table {
    /// Both tables, in the order in which a consumer reads them.
    pub(crate) const ALL: [Self; 2] = [Self::Orders, Self::LineItem];

    /// The name of the dataset that carries it.
    pub(crate) const fn dataset(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::LineItem => "lineitem",
        }
    }
}

/// What makes the work fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadError {
    /// Arrow could not build, encode or decode a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] ArrowError),
    /// Bytes are not a block.
    #[error("block: {0}")]
    Block(&'static str),
    /// A line names an order that was not read: the shuffle mixed something up.
    #[error("order {0} of a line is missing")]
    MissingOrder(i64),
}

/// The rows of one of `n_parts` parts of a table at a scale factor; `part` counts from 0.
pub(crate) fn batches(
    table: Table,
    scale: f64,
    part: u32,
    n_parts: u32,
) -> Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send> {
    let (number, count) = (i32::try_from(part).unwrap_or(i32::MAX).saturating_add(1), i32::try_from(n_parts).unwrap_or(i32::MAX));
    match table {
        Table::Orders => Box::new(OrderArrow::new(OrderGenerator::new(scale, number, count))),
        Table::LineItem => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, number, count))),
    }
}

fn order_keys(batch: &RecordBatch) -> Result<&Int64Array, WorkloadError> {
    let first = batch.columns().first().ok_or(WorkloadError::Block("a batch has no column"))?;
    first.as_primitive_opt::<Int64Type>().ok_or(WorkloadError::Block("the first column is not a key"))
}

/// The consumer that an order key goes to. The multiplier is that of Fibonacci hashing (2^64 divided
/// by the golden ratio); the high bits are taken because they depend on every bit of the key.
fn consumer_of(key: i64, n_consumers: u32) -> u32 {
    let mixed = key.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u32::try_from(mixed % u64::from(n_consumers.max(1))).unwrap_or(0)
}

/// Cuts a batch by order key: the rows for each consumer that gets any.
pub(crate) fn split(batch: &RecordBatch, n_consumers: u32) -> Result<Vec<(u32, RecordBatch)>, WorkloadError> {
    let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (row, key) in (0_u32..).zip(order_keys(batch)?.values()) {
        rows.entry(consumer_of(*key, n_consumers)).or_default().push(row);
    }
    let pick = |rows: Vec<u32>| -> Result<RecordBatch, WorkloadError> {
        let rows = UInt32Array::from(rows);
        let columns = batch.columns().iter().map(|column| take(column, &rows, None).map(compact));
        Ok(RecordBatch::try_new(batch.schema(), columns.collect::<Result<_, _>>()?)?)
    };
    rows.into_iter().map(|(consumer, rows)| Ok((consumer, pick(rows)?))).collect()
}

/// A string view column shares the buffers of the batch it was taken from; a copy of its own rows
/// keeps other consumers' strings out of the block.
fn compact(column: ArrayRef) -> ArrayRef {
    match column.as_any().downcast_ref::<StringViewArray>() {
        Some(views) => Arc::new(views.gc()),
        None => column,
    }
}

/// One block of a batch.
pub(crate) fn encode(batch: &RecordBatch) -> Result<Bytes, WorkloadError> {
    let mut out = vec![0; LENGTH_BYTES];
    let mut writer = StreamWriter::try_new(&mut out, &batch.schema())?;
    writer.write(batch)?;
    writer.finish()?;
    drop(writer);
    let length = u32::try_from(out.len().saturating_sub(LENGTH_BYTES)).map_err(|_| WorkloadError::Block("a batch is too long"))?;
    for (place, byte) in out.iter_mut().zip(length.to_le_bytes()) {
        *place = byte;
    }
    Ok(Bytes::from(out))
}

/// Takes batches out of bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct BlockDecoder {
    buffer: BytesMut,
}

impl BlockDecoder {
    /// Adds bytes that arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The batches of the next block, once it has arrived whole.
    pub(crate) fn next_block(&mut self) -> Result<Option<Vec<RecordBatch>>, WorkloadError> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_BLOCK {
            return Err(WorkloadError::Block("a length is out of bounds"));
        }
        if self.buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        let block = self.buffer.split_to(length).freeze();
        let reader = StreamReader::try_new(block.reader(), None)?;
        Ok(Some(reader.collect::<Result<_, _>>()?))
    }

    /// Says that no more bytes will come. Errors: a block was cut.
    pub(crate) fn finish(&self) -> Result<(), WorkloadError> {
        if self.buffer.is_empty() { Ok(()) } else { Err(WorkloadError::Block("the last block was cut")) }
    }
}

/// Orders and revenue of one priority and year.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sum {
    /// Lines.
    pub(crate) n_lines: u64,
    /// Sum of price × (1 − discount), in units of 0.0001; below 2^63 up to scale factor 1,000.
    pub(crate) revenue: i64,
}

/// Sums by "priority|year".
pub(crate) type Sums = BTreeMap<String, Sum>;

/// Joins lines to orders and sums revenue by priority and order year: exact integers, so that two
/// runs agree to the last digit whatever the order of the rows.
#[derive(Debug, Default)]
pub(crate) struct Join {
    orders: HashMap<i64, u32>,
    groups: Vec<(String, Sum)>,
    n_rows: u64,
}

impl Join {
    /// Rows taken in so far, of both tables.
    pub(crate) const fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Takes in a batch of a table. Every order must be in before its lines.
    pub(crate) fn add(&mut self, table: Table, batch: &RecordBatch) -> Result<(), WorkloadError> {
        self.n_rows = self.n_rows.saturating_add(batch.num_rows() as u64);
        match table {
            Table::Orders => self.add_orders(batch),
            Table::LineItem => self.add_lines(batch),
        }
    }

    fn add_orders(&mut self, batch: &RecordBatch) -> Result<(), WorkloadError> {
        let keys = order_keys(batch)?;
        let dates = column(batch, "o_orderdate")?.as_primitive_opt::<Date32Type>().ok_or(WorkloadError::Block("o_orderdate is no date"))?;
        let years = date_part(dates, DatePart::Year)?;
        let years = years.as_primitive_opt::<Int32Type>().ok_or(WorkloadError::Block("a year is no number"))?;
        let priorities = column(batch, "o_orderpriority")?;
        let priorities = match priorities.data_type() {
            DataType::Utf8View => priorities.as_string_view(),
            _ => return Err(WorkloadError::Block("o_orderpriority is no text")),
        };
        for ((key, year), priority) in keys.values().iter().zip(years.values()).zip(priorities.iter()) {
            let group = self.group(&format!("{}|{year}", priority.unwrap_or_default()));
            self.orders.insert(*key, group);
        }
        Ok(())
    }

    fn group(&mut self, name: &str) -> u32 {
        // At most a few dozen groups exist: 5 priorities times 7 years.
        let found = self.groups.iter().position(|(known, _)| known == name);
        let at = found.unwrap_or_else(|| {
            self.groups.push((name.to_owned(), Sum::default()));
            self.groups.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn add_lines(&mut self, batch: &RecordBatch) -> Result<(), WorkloadError> {
        let keys = order_keys(batch)?;
        let decimal = |name| column(batch, name)?.as_primitive_opt::<Decimal128Type>().ok_or(WorkloadError::Block("a price is no decimal"));
        let (prices, discounts) = (decimal("l_extendedprice")?, decimal("l_discount")?);
        for ((key, price), discount) in keys.values().iter().zip(prices.values()).zip(discounts.values()) {
            let group = self.orders.get(key).ok_or(WorkloadError::MissingOrder(*key))?;
            let at = usize::try_from(*group).unwrap_or(usize::MAX);
            let (_, sum) = self.groups.get_mut(at).ok_or(WorkloadError::MissingOrder(*key))?;
            sum.n_lines += 1;
            let revenue = i64::try_from(price * (100 - discount)).map_err(|_| WorkloadError::Block("a price is out of bounds"))?;
            sum.revenue = sum.revenue.saturating_add(revenue);
        }
        Ok(())
    }

    /// The sums.
    pub(crate) fn into_sums(self) -> Sums {
        self.groups.into_iter().filter(|(_, sum)| sum.n_lines > 0).collect()
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, WorkloadError> {
    batch.column_by_name(name).ok_or(WorkloadError::Block("a column is missing"))
}

/// Adds the sums of one consumer to those of others.
pub(crate) fn merge(into: &mut Sums, other: Sums) {
    for (name, sum) in other {
        let total = into.entry(name).or_default();
        total.n_lines += sum.n_lines;
        total.revenue = total.revenue.saturating_add(sum.revenue);
    }
}

/// The same result without any shuffle: one pass over each table in one process.
pub(crate) fn without_shuffle(scale: f64) -> Result<Sums, WorkloadError> {
    let mut join = Join::default();
    for table in Table::ALL {
        for batch in batches(table, scale, 0, 1) {
            join.add(table, &batch?)?;
        }
    }
    Ok(join.into_sums())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: f64 = 0.002;

    fn through_blocks(n_producers: u32, n_consumers: u32, piece: usize) -> Sums {
        let mut total = Sums::new();
        for consumer in 0..n_consumers {
            let mut join = Join::default();
            for table in Table::ALL {
                for producer in 0..n_producers {
                    let mut decoder = BlockDecoder::default();
                    for batch in batches(table, SCALE, producer, n_producers) {
                        for (to, rows) in split(&batch.unwrap(), n_consumers).unwrap() {
                            if to != consumer {
                                continue;
                            }
                            for part in encode(&rows).unwrap().chunks(piece) {
                                decoder.push(part);
                                while let Some(blocks) = decoder.next_block().unwrap() {
                                    blocks.iter().for_each(|block| join.add(table, block).unwrap());
                                }
                            }
                        }
                    }
                    decoder.finish().unwrap();
                }
            }
            merge(&mut total, join.into_sums());
        }
        total
    }

    #[test]
    fn a_shuffled_join_equals_the_one_without_shuffle() {
        let expected = without_shuffle(SCALE).unwrap();
        assert!(expected.len() > 20, "five priorities times several years");
        assert_eq!(through_blocks(3, 4, 777), expected);
        assert_eq!(through_blocks(1, 1, usize::MAX), expected);
    }

    #[test]
    fn a_missing_block_changes_the_result_or_is_an_error() {
        let batch = batches(Table::LineItem, SCALE, 0, 1).next().unwrap().unwrap();
        let mut join = Join::default();
        assert!(matches!(join.add(Table::LineItem, &batch), Err(WorkloadError::MissingOrder(_))));
    }

    #[test]
    fn a_cut_block_is_never_taken_for_the_end() {
        let batch = batches(Table::Orders, SCALE, 0, 1).next().unwrap().unwrap();
        let block = encode(&batch).unwrap();
        let mut decoder = BlockDecoder::default();
        decoder.push(&block[..block.len() - 1]);
        assert!(decoder.next_block().unwrap().is_none());
        assert!(decoder.finish().is_err());
    }

    #[test]
    fn blocks_hold_their_own_rows_only() {
        let batch = batches(Table::Orders, SCALE, 0, 1).next().unwrap().unwrap();
        let whole = encode(&batch).unwrap().len();
        let parts: usize = split(&batch, 8).unwrap().iter().map(|(_, rows)| encode(rows).unwrap().len()).sum();
        assert!(parts < whole * 2, "{parts} bytes in parts, {whole} in one block");
    }
}
