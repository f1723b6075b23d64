//! Prepares everything that clients need: data files, small files, directories, and the clients' workloads.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use forebay_wire::nfs3::StableHow;
use rand_distr::Zipf;

use crate::ledger::Ledger;
use crate::names::{Names, Place, Promise};
use crate::options::{Layout, Options, Pattern, Size, unit_of};
use crate::part::Part;
use crate::protocol::Handle;
use crate::session::Session;
use crate::workload::{
    Access, Attributes, Data, DataFile, DataPlan, Listing, Meta, MetaPhase, Smallfile, Tree, Workload,
};

/// Name of the directory for all files, below the root of the export.
pub(crate) const DIRECTORY: &str = "forebay-bench";
/// Start of the names of directories that contain small files.
pub(crate) const TREE: &str = "tree-";
/// Size in bytes of a WRITE that fills files before they are measured.
const FILL_RECORD: u32 = 1 << 20;
const FILL_DEPTH: u16 = 8;

/// One phase: the workload and depth of each client, in the order of the clients.
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) parts: Vec<(Box<dyn Workload>, u16)>,
}

/// The data files of one group of clients: several for each client, or one for all.
pub(crate) struct FileSet {
    pub(crate) files: Vec<Arc<DataFile>>,
    per_client: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FileSetKey {
    group: usize,
    count: u32,
    per_client: usize,
    size: Size,
    unit: u32,
}

impl std::hash::Hash for Size {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Prepares phases on one export.
pub(crate) struct Setup {
    pub(crate) session: Session,
    pub(crate) dir: Handle,
    verify: bool,
    part: Part,
    filesets: HashMap<FileSetKey, Arc<FileSet>>,
    trees: u32,
    names: Vec<Arc<Names>>,
    seed: u64,
}

impl Setup {
    /// Makes the directory of the runs below the root, or finds it. `verify` keeps a ledger of the contents of every
    /// file.
    pub(crate) fn new(mut session: Session, verify: bool, part: Part) -> Result<Self> {
        let root = session.root;
        let dir = session.directory(&root, DIRECTORY)?;
        Ok(Self {
            session,
            dir,
            verify,
            part,
            filesets: HashMap::new(),
            trees: 0,
            names: Vec::new(),
            seed: 1,
        })
    }

    /// Returns every file that has been used for data.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        self.filesets.values().flat_map(|set| &set.files)
    }

    /// Returns the promise for every small file and directory.
    pub(crate) fn promises(&self) -> Vec<Promise> {
        self.names.iter().flat_map(|names| names.promises()).collect()
    }

    /// Starts to record the names of a client, if content is checked.
    fn names(&mut self, place: Place, letter: char, client: u32, size: Option<u32>) -> Option<Arc<Names>> {
        let names = self.verify.then(|| Arc::new(Names::new(place, letter, client, size)))?;
        self.names.push(names.clone());
        Some(names)
    }

    /// Finds or makes the data files of group number `group`. With `empty` they have no content afterwards.
    pub(crate) fn fileset(
        &mut self,
        group: usize,
        pattern: Pattern,
        options: &Options,
        empty: bool,
    ) -> Result<Arc<FileSet>> {
        let unit = unit_of(options.record_for(pattern));
        let shared = options.shared.is_some();
        let clients = self.part.clients(options.clients);
        let (numbers, per_client) = if shared {
            (0..1, 0)
        } else {
            (clients.start * options.files..clients.end * options.files, options.files as usize)
        };
        let count = numbers.end - numbers.start;
        let size = if shared {
            options.size.0 * u64::from(options.clients)
        } else {
            options.size.0 / u64::from(options.files)
        };
        let key = FileSetKey { group, count, per_client, size: Size(size), unit };
        if let (Some(set), false) = (self.filesets.get(&key), empty) {
            return Ok(set.clone());
        }
        // File sets of another shape use these names, so their knowledge about the content is now invalid.
        self.filesets.retain(|known, _| known.group != group);
        let mut files = Vec::new();
        let prepares = !shared || self.part.leads();
        for number in numbers {
            let name = format!("{}{group}-{number}", if shared { "shared" } else { "data" });
            let handle = self.session.file(&self.dir, &name)?;
            if (empty || self.verify) && prepares {
                self.session.truncate(&handle, &name)?;
            }
            let id = (group as u64) << 32 | u64::from(number);
            let ledger = self.verify.then(|| Ledger::new(size, unit));
            files.push(Arc::new(DataFile { id, name, handle, size, ledger }));
        }
        let set = Arc::new(FileSet { files, per_client });
        self.filesets.insert(key, set.clone());
        Ok(set)
    }

    /// Returns a phase that fills the files that do not have their full size; `None` if all have it.
    pub(crate) fn fill(&mut self, set: &FileSet, unit: u32) -> Result<Option<Phase>> {
        let mut parts: Vec<(Box<dyn Workload>, u16)> = Vec::new();
        let ours: &[Arc<DataFile>] = if set.per_client > 0 || self.part.leads() { &set.files } else { &[] };
        for file in ours {
            if self.session.size(&file.handle, &file.name)? == file.size {
                continue;
            }
            // The record is the largest that divides the file and is a multiple of the unit.
            let record = (0..).map(|halving| FILL_RECORD >> halving).find(|record| {
                *record <= unit || file.size.is_multiple_of((*record).into()) && record.is_multiple_of(unit)
            });
            let record = record.unwrap_or(unit).max(unit);
            let record = record.min(self.session.limits.write.max(unit));
            let plan = DataPlan {
                files: vec![file.clone()],
                access: Access::Sequential { first: 0, stride: 1 },
                read_percent: 0,
                record,
                unit,
                stable: StableHow::Unstable,
                commit_every: None,
                records: file.size / u64::from(record),
                limit: Some(file.size / u64::from(record)),
                at_rest: false,
                seed: 0,
            };
            parts.push((Box::new(Data::new(plan, FILL_DEPTH)), FILL_DEPTH));
        }
        Ok((!parts.is_empty()).then(|| Phase { name: "fill".to_owned(), parts }))
    }

    /// Returns the workload of each client of a group on the data files.
    pub(crate) fn data(
        &mut self,
        set: &FileSet,
        pattern: Pattern,
        options: &Options,
        timed: bool,
    ) -> Result<Vec<(Box<dyn Workload>, u16)>> {
        let record = options.record_for(pattern);
        let own_records = options.size.0 / u64::from(record);
        let whole = own_records * if options.shared.is_some() { u64::from(options.clients) } else { 1 };
        let mut parts: Vec<(Box<dyn Workload>, u16)> = Vec::new();
        let clients = self.part.clients(options.clients);
        for client in clients.clone() {
            let sequential = match options.shared {
                Some(Layout::Strided) => {
                    Access::Sequential { first: client.into(), stride: options.clients.into() }
                }
                Some(Layout::Segmented) => {
                    Access::Sequential { first: u64::from(client) * own_records, stride: 1 }
                }
                None => Access::Sequential { first: 0, stride: 1 },
            };
            let access = match options.zipf {
                _ if pattern.is_sequential() => sequential,
                None => Access::Uniform,
                Some(exponent) => {
                    Access::Zipf(Zipf::new(whole as f64, exponent).context("--zipf is not possible")?)
                }
            };
            let read_percent = match pattern {
                Pattern::Seqread | Pattern::Randread => 100,
                Pattern::Mixed => options.read_percent,
                _ => 0,
            };
            let stable = options.stable_for(pattern);
            let commits = stable == StableHow::Unstable && !pattern.is_sequential();
            let one_pass = (pattern.is_sequential() && !timed).then_some(own_records);
            let files = match options.shared {
                Some(_) => set.files.clone(),
                None => {
                    let first = (client - clients.start) as usize * set.per_client;
                    set.files[first..first + set.per_client].to_vec()
                }
            };
            self.seed += 1;
            let plan = DataPlan {
                files,
                access,
                read_percent,
                record,
                unit: unit_of(record),
                stable,
                commit_every: commits.then_some(options.commit_every),
                records: if pattern.is_sequential() { own_records } else { whole },
                limit: options.count.or(one_pass),
                at_rest: false,
                seed: u64::from(self.part.index) << 32 | self.seed,
            };
            parts.push((Box::new(Data::new(plan, options.depth)), options.depth));
        }
        Ok(parts)
    }

    /// Makes empty trees for the clients of a group, in a new directory.
    pub(crate) fn trees(&mut self, pattern: Pattern, options: &Options) -> Result<Vec<Arc<Tree>>> {
        self.trees += 1;
        let name = format!("{TREE}{}", self.trees);
        let base = self.session.directory(&self.dir, &name)?;
        let needed = options.items.div_ceil(options.items_per_dir);
        // If making directories is measured, there are as many as files, because few would give no reliable figure.
        let count = if pattern == Pattern::Meta { needed.max(options.items) } else { needed };
        let fresh = || -> Arc<[OnceLock<Handle>]> { (0..count).map(|_| OnceLock::new()).collect() };
        let shared = options.shared_dirs.then(fresh);
        let mut trees = Vec::new();
        for client in self.part.clients(options.clients) {
            let (base, path) = match shared {
                Some(_) => (base, name.clone()),
                None => {
                    let own = format!("client-{client}");
                    (self.session.directory(&base, &own)?, format!("{name}/{own}"))
                }
            };
            let dirs = shared.clone().unwrap_or_else(fresh);
            let owner = if shared.is_some() { 0 } else { client };
            let stable = options.stable_for(pattern);
            let place = Place { base: path.clone(), dirs: Some((owner, options.items_per_dir)) };
            let files = self.names(place, 'f', client, Some(options.item_size.0 as u32));
            let made = self.names(Place { base: path, dirs: None }, 'd', client, None);
            trees.push(Arc::new(Tree::new(
                client,
                base,
                dirs,
                owner == client,
                options,
                stable,
                files.zip(made),
            )));
        }
        Ok(trees)
    }

    /// Finds the directories that another host has made for all hosts.
    pub(crate) fn adopt_dirs(&mut self, trees: &[Arc<Tree>]) -> Result<()> {
        let Some(tree) = trees.first() else { return Ok(()) };
        for (number, dir) in tree.dirs.iter().enumerate().filter(|(_, dir)| dir.get().is_none()) {
            let name = tree.dir_name(number as u32).to_string();
            let found = self.session.lookup(&tree.base, name.as_bytes())?;
            let found = found.with_context(|| format!("the directory {name} is not there"))?;
            // Only this thread sets the handle, so the call cannot fail.
            let _ = dir.set(found);
        }
        Ok(())
    }

    /// Returns one phase over trees.
    pub(crate) fn meta(&self, trees: &[Arc<Tree>], phase: MetaPhase, depth: u16) -> Phase {
        let part = |tree: &Arc<Tree>| -> (Box<dyn Workload>, u16) {
            (Box::new(Meta::new(tree.clone(), phase, depth)), depth)
        };
        Phase { name: phase.name().to_owned(), parts: trees.iter().map(part).collect() }
    }

    /// Returns the workload of each client that asks for attributes in its tree.
    pub(crate) fn attributes(
        &self,
        trees: &[Arc<Tree>],
        pattern: Pattern,
        options: &Options,
    ) -> Vec<(Box<dyn Workload>, u16)> {
        let depth = options.depth;
        let part = |tree: &Arc<Tree>| -> (Box<dyn Workload>, u16) {
            (Box::new(Attributes::new(tree.clone(), pattern, options.count, depth)), depth)
        };
        trees.iter().map(part).collect()
    }

    /// Returns the workload of each client that lists the only directory of the first tree.
    pub(crate) fn listing(&self, trees: &[Arc<Tree>], options: &Options) -> Vec<(Box<dyn Workload>, u16)> {
        let entries = u64::from(options.items);
        let count = self.session.limits.listing.clamp(4096, 1 << 20);
        let dir = trees[0].dir_of(0);
        let part = |_| -> (Box<dyn Workload>, u16) {
            (Box::new(Listing::new(dir, entries, count, options.count, options.depth)), options.depth)
        };
        self.part.clients(options.clients).map(part).collect()
    }

    /// Returns the workload of each client that makes small files.
    pub(crate) fn smallfile(&mut self, options: &Options) -> Result<Vec<(Box<dyn Workload>, u16)>> {
        let trees = self.trees(Pattern::Smallfile, options)?;
        let size = if options.item_size.0 == 0 { 4096 } else { options.item_size.0 as u32 };
        let stable = options.stable_for(Pattern::Smallfile);
        let mut parts: Vec<(Box<dyn Workload>, u16)> = Vec::new();
        for tree in trees {
            let own = if options.shared_dirs { String::new() } else { format!("/client-{}", tree.client) };
            let place = Place { base: format!("{TREE}{}{own}", self.trees), dirs: None };
            let names = self.names(place, 's', tree.client, Some(size));
            let (count, depth) = (options.count, options.depth);
            let files = Smallfile::new(tree.client, tree.base, size, stable, count, depth, names);
            parts.push((Box::new(files), depth));
        }
        Ok(parts)
    }
}
