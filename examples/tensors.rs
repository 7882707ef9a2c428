//! A service that keeps tensors in the memory of its GPU: clients put theirs there and get them
//! back, from GPU to GPU. This program starts itself again as the service, and moves a tensor of
//! that many bytes (1 GiB by default) there and back.
//!
//! ```text
//! cargo run --release --example tensors
//! cargo run --example tensors -- 4194304 fake
//! ```
//!
//! The second line needs no GPU: it takes a driver for tests, whose rates say nothing. Prints what
//! came back, and how much of it no buffer of the host has seen.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use margo::config::Config;
use margo::device::{Device, DeviceMemory, Driver, fake::Fake};
use margo::{Access, Bulk, Handle, Instance, InstanceBuilder, ProviderHandle, Rpc};
use serde::{Deserialize, Serialize};

type Failure = Box<dyn std::error::Error>;

/// A tensor of the caller: where its bytes are, and what they mean.
#[derive(Serialize, Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    bulk: Bulk,
}

/// Copies a tensor of the caller into the memory of the service.
const PUT: Rpc<Tensor, Result<(), String>> = Rpc::new("put");
/// Copies one back into memory of the caller.
const GET: Rpc<Tensor, Result<(), String>> = Rpc::new("get");
/// Bytes that the service's GPU has copied by itself, and ends the service.
const END: Rpc<(), u64> = Rpc::new("end");

type Tensors = Arc<Mutex<HashMap<String, (Vec<u64>, DeviceMemory)>>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tensors: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Failure> {
    let driver = || match args.iter().any(|arg| arg == "fake") {
        true => Fake::new(1, 1).driver(),
        false => Driver::cuda(),
    };
    let bytes = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(1 << 30);
    // The last GPU of the service, so that it is another one where there are several.
    let driver = driver()?;
    let last = driver.devices()?.len().saturating_sub(1);
    match args.iter().any(|arg| arg == "serve") {
        true => serve(&driver.device(u32::try_from(last)?)?),
        false => move_there_and_back(&driver.device(0)?, bytes, args),
    }
}

/// An instance that lends its GPU's memory to processes of this host and user, and maps theirs.
fn start(listen: bool) -> Result<Instance, Failure> {
    let mut config = Config::default();
    config.margo.address = "na+sm://".to_owned();
    config.margo.device.share = true;
    Ok(InstanceBuilder::from_config(config).listen(listen).start()?)
}

fn serve(gpu: &Device) -> Result<(), Failure> {
    // It ends with the process that has started it, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    let service = start(true)?;
    let tensors = Tensors::default();
    let (own, there) = (gpu.clone(), tensors.clone());
    service.register(PUT, move |request| {
        let put = put(&request, &own, &there).map_err(|error| error.to_string());
        // Who is gone needs no answer.
        let _ = request.respond(&put);
    })?;
    service.register(GET, move |request| {
        let got = get(&request, &tensors).map_err(|error| error.to_string());
        let _ = request.respond(&got);
    })?;
    service.register(END, |request: Handle<(), u64>| {
        let instance = request.instance().clone();
        let _ = request.respond(&instance.metrics().memory.device_shared_bytes);
        instance.finalize();
    })?;
    println!("listening on {}", service.self_addr());
    service.wait_for_finalize()?;
    Ok(())
}

fn put(
    request: &Handle<Tensor, Result<(), String>>,
    gpu: &Device,
    tensors: &Tensors,
) -> Result<(), Failure> {
    let Tensor { name, shape, bulk } = request.args();
    let len = usize::try_from(bulk.len())?;
    // What can be lent, so that the caller's GPU copies it over; any other memory works as well.
    let memory = gpu.alloc_exportable(len)?;
    let mut local = request.instance().expose(memory, Access::ReadOnly)?;
    request.pull(bulk, 0, &mut local, 0..len)?;
    let memory = local.release()?;
    let mut tensors = tensors.lock().map_err(|_| "a handler has panicked")?;
    tensors.insert(name.clone(), (shape.clone(), memory));
    Ok(())
}

fn get(request: &Handle<Tensor, Result<(), String>>, tensors: &Tensors) -> Result<(), Failure> {
    let Tensor { name, shape, bulk } = request.args();
    let found = tensors.lock().map_err(|_| "a handler has panicked")?.get(name).cloned();
    let (kept, memory) = found.ok_or_else(|| format!("no tensor `{name}`"))?;
    if kept != *shape {
        return Err(format!("`{name}` has the shape {kept:?}, not {shape:?}").into());
    }
    let len = memory.len();
    let mut local = request.instance().expose(memory, Access::ReadOnly)?;
    request.push(bulk, 0, &mut local, 0..len)?;
    Ok(())
}

/// The process of the service, which does not outlive this one.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn move_there_and_back(gpu: &Device, bytes: usize, args: &[String]) -> Result<(), Failure> {
    let mut again = Command::new(std::env::current_exe()?);
    again.args(args).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut service = Service(again.spawn()?);
    let lines = service.0.stdout.take().ok_or("no output of the service")?;
    let line = BufReader::new(lines).lines().next().ok_or("the service has not started")??;
    let address = line.strip_prefix("listening on ").ok_or("the service says something else")?;

    // An owner of device memory is asked to move it, and so listens.
    let client = start(true)?;
    let target = ProviderHandle::from(client.lookup(address)?);
    let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let memory = gpu.alloc_exportable(bytes)?;
    memory.write_at(0, &pattern)?;

    let exposed = client.expose(memory.clone(), Access::ReadWrite)?;
    let bulk = exposed.bulk().clone();
    let tensor = Tensor { name: "weights".into(), shape: vec![bytes as u64], bulk };
    let begun = Instant::now();
    client.forward(PUT, &target, &tensor)??;
    println!("put {bytes} bytes at {:.1} GB/s", rate(bytes, begun));
    memory.write_at(0, &vec![0; bytes])?;
    let begun = Instant::now();
    client.forward(GET, &target, &tensor)??;
    println!("got {bytes} bytes at {:.1} GB/s", rate(bytes, begun));

    let mut back = vec![0; bytes];
    memory.read_at(0, &mut back)?;
    assert!(back == pattern, "the tensor came back wrong");
    let by_us = client.metrics().memory.device_shared_bytes;
    let by_service = client.forward(END, &target, &())?;
    println!("{} bytes were copied by GPUs alone", by_us + by_service);
    drop(exposed);
    client.finalize_and_wait()?;
    Ok(())
}

/// GB/s since then.
fn rate(bytes: usize, begun: Instant) -> f64 {
    bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
}
