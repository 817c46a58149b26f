//! A worker of a job: registers, beats, runs tasks that it is given, follows the plan.
//!
//! ```text
//! cargo run --example worker -- http://127.0.0.1:7440 JOB worker-1
//! ```
//! Tasks come on standard input, one per line: `VERTEX INDEX ATTEMPT`. What an engine adds is how it
//! gets its tasks and what it computes.

#![expect(clippy::print_stdout, reason = "an example says what it does")]

use forebay_client::{Client, Worker, WorkerOrder};
use std::error::Error;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(job), Some(name)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("worker URL JOB WORKER < tasks".into());
    };
    let client = Client::builder(url).build()?;
    let mut worker = Worker::register(client.job(&job)?, &name).await?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (Some(vertex), Some(Ok(index)), Some(attempt)) = (words.next(), words.next().map(str::parse::<u32>), words.next()) else {
            return Err(format!("{line:?} is not VERTEX INDEX ATTEMPT").into());
        };
        if run(&mut worker, vertex, index, attempt).await? {
            println!("{vertex}#{index} {attempt} finished");
        } else {
            println!("{vertex}#{index} {attempt} does not count");
        }
    }
    worker.leave().await?;
    Ok(())
}

/// Runs an attempt; answers whether it counts. Stops it when the coordinator says so.
async fn run(worker: &mut Worker, vertex: &str, index: u32, attempt: &str) -> forebay_client::Result<bool> {
    if !worker.begin(vertex, index, attempt).await? {
        return Ok(false);
    }
    // In place of computing: ten steps, with a look at the orders between them.
    for _ in 0..10 {
        let step = worker.interval().min(Duration::from_millis(20));
        store_api::Clock::sleep(&store_api::SystemClock::new(), step).await;
        if let Some(WorkerOrder::Stop(stopped)) = worker.beat_if_due().await? {
            worker.stopped(&stopped).await?;
            return Ok(false);
        }
    }
    worker.finish(vertex, index, attempt).await
}
