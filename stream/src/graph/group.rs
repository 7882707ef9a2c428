//! One group of a graph that is cut, as a process runs it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use margo::config::{Config, Error, Errors, nearest};
use margo::ult::{CpuSet, PoolRef};
use margo::{Instance, InstanceBuilder};

use super::builder::Graph;
use super::document::{GraphDocument, Group, GroupEndpoint};
use super::error::GraphError;
use super::launched;
use super::links::Links;
use super::run::{Report, Run, runtime_on};

impl Graph {
    /// Takes the arguments of a program apart: into its own, and those for
    /// [`run_from_args`](Self::run_from_args). The latter are the last ones, as launchers add them,
    /// or have `--` and more of the program's own behind them.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let split = |line: &str| Graph::split_args(line.split(' ').map(str::to_owned));
    /// let (own, arguments) = split("docs --deep --group G2 words.json");
    /// assert_eq!(own, ["docs", "--deep"]);
    /// assert_eq!(arguments, ["--group", "G2", "words.json"]);
    /// assert_eq!(split("--group G2 words.json -- --group").0, ["--group"]);
    /// assert_eq!(split("docs").1, [""; 0]);
    /// ```
    pub fn split_args(arguments: impl IntoIterator<Item = String>) -> (Vec<String>, Vec<String>) {
        let mut own: Vec<_> = arguments.into_iter().collect();
        let mut behind = Vec::new();
        if let Some(dashes) = (0..own.len()).rev().find(|at| own[*at] == "--")
            && len_of_own(&own[dashes..]).is_none()
        {
            behind = own.split_off(dashes);
            behind.remove(0);
        }
        let mut arguments = Vec::new();
        if let Some(len) = len_of_own(&own) {
            arguments = own.split_off(len);
        }
        own.append(&mut behind);
        (own, arguments)
    }

    /// Runs the graph, or one group of it, as the arguments of the program say: all of it in this
    /// process if there are none, and for `--group NAME FILE` the group of that name, as the
    /// document in the file cuts the graph. `--plan FILE` only prints the
    /// [plan](super::Plan::text) with the groups of the document, and with `--svg OUT` draws it
    /// into a file; nothing runs then, and there are no results. A program with arguments of its
    /// own [takes them out](Self::split_args) before.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// # let arguments = Vec::new();
    /// # /*
    /// let arguments = std::env::args().skip(1);
    /// # */
    /// let graph = Graph::new();
    /// let sums = graph.source("numbers", 1..=100u64).stage("sum").sink(0, |sum, n| *sum += n);
    /// graph.run_from_args(arguments)?;
    /// // In a group that does not run the sink there are none.
    /// sums.take().iter().for_each(|sum| println!("{sum}"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`GraphError::Arguments`] for other arguments; a file that cannot be read or written, and as
    /// [`run_group`](Self::run_group).
    pub fn run_from_args(
        self,
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<Report, GraphError> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => self.run(),
            ["--group", name, file] => {
                let document = launched::told(GraphDocument::from_file(file))?;
                self.run_group(name, &document)
            }
            ["--plan", file] => launched::told(self.show_plan(file, None)),
            ["--plan", file, "--svg", out] => launched::told(self.show_plan(file, Some(out))),
            _ => launched::told(Err(GraphError::Arguments(arguments.join(" ")))),
        }
    }

    fn show_plan(self, file: &str, svg: Option<&str>) -> Result<Report, GraphError> {
        let document = GraphDocument::from_file(file)?;
        let plan = self.plan();
        plan.check().map_err(GraphError::Plan)?;
        let cut = document.resolve(&plan).map_err(GraphError::Document)?;
        let failed = |path: &str, error: std::io::Error| GraphError::Output {
            path: path.to_owned(),
            cause: error.into(),
        };
        if let Some(out) = svg {
            std::fs::write(out, plan.svg(Some(&cut))).map_err(|error| failed(out, error))?;
        }
        let written = std::io::stdout().write_all(plan.text(Some(&cut)).as_bytes());
        written.map_err(|error| failed("the plan", error))?;
        Ok(Report { elapsed: Duration::ZERO, stages: Vec::new(), edges: Vec::new() })
    }

    /// Runs one group of the graph, as the document cuts it, to its end. Each group is a process
    /// that calls this with the same graph and document, and with its own name; they may start in
    /// any order. It has an execution stream for each of the group's CPUs, and an instance for each
    /// of its endpoints.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, GraphDocument};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("G2").display().to_string();
    /// let document = GraphDocument::from_json(&format!(
    ///     r#"{{ "groups": {{
    ///         "G1": {{ "stages": ["read"] }},
    ///         "G2": {{ "stages": ["sum"],
    ///                 "endpoints": [{{ "address": "na+sm://", "file": "{file}" }}] }}
    ///     }} }}"#,
    /// ))?;
    /// let group = |name: &'static str, document: GraphDocument| {
    ///     std::thread::spawn(move || {
    ///         let graph = Graph::new();
    ///         let sum = graph.source("read", 0..1000u64).stage("sum").sink(0, |sum, n| *sum += n);
    ///         graph.run_group(name, &document).map(|_| sum.take())
    ///     })
    /// };
    /// // Two processes, usually.
    /// let groups = [group("G1", document.clone()), group("G2", document)];
    /// let sums = groups.map(|group| group.join().unwrap());
    /// assert_eq!(sums[1].as_ref().unwrap(), &[499_500]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`GraphError`]: what is wrong with graph and document, or the first failure, also that of
    /// another group.
    pub fn run_group(self, name: &str, document: &GraphDocument) -> Result<Report, GraphError> {
        launched::told(self.run_here(name, document))
    }

    fn run_here(self, name: &str, document: &GraphDocument) -> Result<Report, GraphError> {
        let links = self.links(name, document)?;
        let group = &document.groups[name];
        // For as long as the group runs: who else has its name would take a part of its items.
        let _locks = group.endpoints.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
        let cpus: CpuSet = group.cpus.as_deref().unwrap_or_default().parse().unwrap_or_default();
        let runtime = runtime_on(cpus.iter().map(Some).collect())?;
        let mut instances = Vec::new();
        let outcome = start_instances(&links, group, &mut instances)
            .and_then(|()| {
                self.start_linked(Links { instances: instances.clone(), ..links }, &runtime.pools())
            })
            .and_then(launched::join);
        let mut ended = Ok(());
        for instance in &instances {
            let finalized = instance.finalize_and_wait();
            ended = ended.and(finalized.map_err(|error| GraphError::Runtime(error.into())));
        }
        runtime.shutdown().map_err(|error| GraphError::Runtime(error.into()))?;
        let report = outcome?;
        ended.map(|()| report)
    }

    /// Starts one group of the graph, as [`run_group`](Self::run_group) does, in pools of a runtime
    /// or an instance, with instances of the program's own: first one for each endpoint of the
    /// group, in the order of the document, and then any that only call. That of an endpoint with a
    /// file writes it.
    ///
    /// # Errors
    ///
    /// [`GraphError`]: what is wrong with graph and document, or why it does not start.
    pub fn start_group(
        self,
        name: &str,
        document: &GraphDocument,
        pools: &[PoolRef],
        instances: &[Instance],
    ) -> Result<Run, GraphError> {
        let links = self.links(name, document)?;
        self.start_linked(Links { instances: instances.to_vec(), ..links }, pools)
    }

    fn links(&self, name: &str, document: &GraphDocument) -> Result<Links, GraphError> {
        let plan = self.plan();
        plan.check().map_err(GraphError::Plan)?;
        let cut = document.resolve(&plan).map_err(GraphError::Document)?;
        if !document.groups.contains_key(name) {
            let groups: Vec<_> = document.groups.keys().map(String::as_str).collect();
            let hint = nearest(name, &groups).map(|group| format!("; did you mean \"{group}\"?"));
            let (groups, hint) = (groups.join(", "), hint.unwrap_or_default());
            let what = format!("no group is called \"{name}\" (groups: {groups}){hint}");
            return Err(GraphError::Document(Errors::from(Error::new("groups", what))));
        }
        let (own, document) = (name.to_owned(), document.clone());
        let (instances, watched) = Default::default();
        Ok(Links { own, plan, cut, document, instances, watched })
    }

    fn start_linked(self, links: Links, pools: &[PoolRef]) -> Result<Run, GraphError> {
        self.launch(pools, Some(Arc::new(links)))
    }
}

/// The words before those that say what to run, if these stand at the end.
fn len_of_own(words: &[String]) -> Option<usize> {
    let is_at = |back: usize, word: &str| {
        let at = words.len().checked_sub(back)?;
        (words[at] == word).then_some(at)
    };
    let drawn = is_at(4, "--plan").filter(|_| is_at(2, "--svg").is_some());
    is_at(3, "--group").or(drawn).or_else(|| is_at(2, "--plan"))
}

/// The lock beside the file of an endpoint.
struct EndpointLock(File);

impl Drop for EndpointLock {
    fn drop(&mut self) {
        // Not by closing alone: a child that this process is about to start may have a copy of the
        // descriptor until it runs its program.
        let _ = self.0.unlock();
    }
}

/// Takes the lock beside the file of an endpoint, if it has one.
fn lock(endpoint: &GroupEndpoint) -> Result<Option<EndpointLock>, GraphError> {
    let Some(file) = &endpoint.file else { return Ok(None) };
    let path = format!("{file}.lock");
    let address = || endpoint.address.clone();
    let failed = |cause| GraphError::Endpoint { address: address(), cause };
    let lock = File::options().create(true).append(true).open(&path);
    let lock = lock.map_err(|error| failed(format!("{path}: {error}").into()))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(EndpointLock(lock))),
        Err(error) => Err(failed(format!("{path}: is the group running? {error}").into())),
    }
}

/// Starts the instances of a group: those of its endpoints, and one for each further transport by
/// which it calls others.
fn start_instances(
    links: &Links,
    group: &Group,
    instances: &mut Vec<Instance>,
) -> Result<(), GraphError> {
    let own: BTreeSet<_> = group.endpoints.iter().map(GroupEndpoint::transport).collect();
    let called = links.called().map(GroupEndpoint::transport).filter(|one| !own.contains(one));
    let callers = called.collect::<BTreeSet<_>>().into_iter().map(|transport| {
        let address = format!("{transport}://");
        (GroupEndpoint { address, ..GroupEndpoint::default() }, false)
    });
    for (endpoint, listens) in group.endpoints.iter().map(|one| (one.clone(), true)).chain(callers)
    {
        let mut config = Config::default();
        config.margo.address.clone_from(&endpoint.address);
        config.margo.address_file = endpoint.file;
        config.margo.listen = listens;
        config.margo.metrics = endpoint.metrics.unwrap_or_default();
        if let Some(tcp) = links.document.security_of_run() {
            config.margo.security.get_or_insert_default().tcp = Some(tcp);
        }
        let started = InstanceBuilder::from_config(config).start();
        instances.push(started.map_err(|error| GraphError::Endpoint {
            address: endpoint.address,
            cause: error.into(),
        })?);
    }
    Ok(())
}
