//! W10: in this process, without any socket: decode framed appends of 100-byte records and place them by
//! subpartition. Reference: memcpy of the same payloads, from the same stream, into one buffer per
//! subpartition, which checks nothing.

use crate::bench::{Bench, MIB};
use crate::error::{LoadError, Result, ensure};
use crate::figure::{Figure, Goal};
use bytes::Bytes;
use std::hint::black_box;
use store_api::frame::{FrameDecoder, FrameHeader, FrameKind, HEADER_LENGTH, MAX_PAYLOAD};
use store_api::{Chunk, Digest};

const N_SUBPARTITIONS: u32 = 1000;
const RECORD: usize = 100;
/// As bytes arrive from a socket.
const ARRIVAL: usize = 64 * 1024;

/// A stream of framed records.
#[derive(Debug)]
struct Stream {
    bytes: Bytes,
    /// Payload bytes.
    payload: u64,
    /// Where each payload starts, and whose it is.
    places: Vec<(usize, u32)>,
}

/// A subpartition's buffer, as an open attempt holds it.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    digest: Digest,
}

/// Measures.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let stream = build(bench)?;
    let per_buffer = capacity(&stream);
    let ours = async |_| {
        let arrivals = arrivals(&stream);
        let mut buffers: Vec<Buffer> =
            (0..N_SUBPARTITIONS).map(|_| Buffer { bytes: warm(per_buffer), digest: Digest::default() }).collect();
        let meter = bench.meter(&[]);
        decode(arrivals, &mut buffers)?;
        let reading = meter.throughput(stream.payload);
        let placed: u64 = buffers.iter().map(|buffer| buffer.bytes.len() as u64).sum();
        ensure(placed == stream.payload, || format!("{placed} bytes were placed, not {}", stream.payload))?;
        black_box(&buffers);
        Ok(reading)
    };
    let reference = async |_| {
        let mut buffers: Vec<Vec<u8>> = (0..N_SUBPARTITIONS).map(|_| warm(per_buffer)).collect();
        let meter = bench.meter(&[]);
        copy(&stream, &mut buffers);
        let reading = meter.throughput(stream.payload);
        ensure(buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() == stream.payload, || "a copy is missing".to_owned())?;
        black_box(&buffers);
        Ok(reading)
    };
    let sides = bench.duel(bench.plan.n_runs.max(3), ours, reference).await?;
    let name = format!("records of {RECORD} bytes, {N_SUBPARTITIONS} subpartitions, {:.0} MiB", stream.payload as f64 / MIB);
    let against = "memcpy of the same payloads into one buffer per subpartition";
    Ok(vec![Figure::new(name, "MiB/s", against, sides, Goal::AtLeast(0.25)).note("arrival_bytes", ARRIVAL)])
}

fn build(bench: &Bench) -> Result<Stream> {
    let n = bench.plan.decode_bytes / RECORD as u64;
    let mut bytes = Vec::with_capacity(usize::try_from(n).unwrap_or_default() * (RECORD + HEADER_LENGTH));
    let mut places = Vec::new();
    for sequence in 0..n {
        let payload = bench.pool.block(sequence, RECORD)?;
        // A multiplier without a common factor: neighbours go to different subpartitions.
        let target = u32::try_from(sequence.wrapping_mul(617) % u64::from(N_SUBPARTITIONS)).unwrap_or_default();
        let header = FrameHeader::data(target, sequence, &Chunk::new(payload.clone()));
        bytes.extend_from_slice(&header.ok_or_else(|| LoadError::check("a record is too long"))?.encode());
        places.push((bytes.len(), target));
        bytes.extend_from_slice(&payload);
    }
    bytes.extend_from_slice(&FrameHeader::bare(FrameKind::End, 0, n).encode());
    Ok(Stream { bytes: bytes.into(), payload: n * RECORD as u64, places })
}

fn capacity(stream: &Stream) -> usize {
    let each = stream.payload / u64::from(N_SUBPARTITIONS);
    usize::try_from(each).unwrap_or_default() + 2 * RECORD
}

/// An empty buffer whose pages are there.
fn warm(capacity: usize) -> Vec<u8> {
    let mut buffer = vec![1; capacity];
    black_box(&mut buffer).clear();
    buffer
}

/// The stream in pieces of their own, as a socket hands them out.
fn arrivals(stream: &Stream) -> Vec<Bytes> {
    stream.bytes.chunks(ARRIVAL).map(Bytes::copy_from_slice).collect()
}

fn decode(arrivals: Vec<Bytes>, buffers: &mut [Buffer]) -> Result<()> {
    let damaged = |error: store_api::frame::FrameError| LoadError::check(error.to_string());
    let mut decoder = FrameDecoder::new(MAX_PAYLOAD);
    for piece in arrivals {
        decoder.push(piece).map_err(damaged)?;
        while let Some(frame) = decoder.next_frame().map_err(damaged)? {
            if frame.header.kind == FrameKind::End {
                continue;
            }
            let at = usize::try_from(frame.header.target).unwrap_or(usize::MAX);
            let buffer = buffers.get_mut(at).ok_or_else(|| LoadError::check("no such subpartition"))?;
            let digest = buffer.digest.followed_by_bytes(frame.chunk.bytes(), frame.chunk.crc());
            buffer.digest = digest.ok_or_else(|| LoadError::check("a subpartition is too long"))?;
            buffer.bytes.extend_from_slice(frame.chunk.bytes());
        }
    }
    decoder.finish().map_err(damaged)
}

fn copy(stream: &Stream, buffers: &mut [Vec<u8>]) {
    for (start, target) in &stream.places {
        let payload = stream.bytes.get(*start..*start + RECORD).unwrap_or_default();
        let at = usize::try_from(*target).unwrap_or(usize::MAX);
        if let Some(buffer) = buffers.get_mut(at) {
            buffer.extend_from_slice(payload);
        }
    }
}
