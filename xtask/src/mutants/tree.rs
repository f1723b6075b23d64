//! A copy of the working tree in which all mutants are, and the test programs that are built of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Tests;
use super::switch::{Mutant, SWITCH, Switched, changed, switched};
use crate::process::{command, output, root, target_dir};

/// The tree, in the target directory.
pub(super) struct Tree {
    path: PathBuf,
    /// The files that mutants change.
    files: BTreeMap<String, Switched>,
    /// Mutants that are built apart from all others, by number.
    pub(super) apart: BTreeSet<usize>,
    /// Mutants that cannot be compiled.
    pub(super) invalid: BTreeSet<usize>,
}

/// A test program.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Where it runs: its package.
    pub(super) folder: PathBuf,
}

/// Writes a file if it has other contents; otherwise cargo would compile it again.
fn write(path: &Path, contents: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|before| before == contents) {
        return Ok(());
    }
    let folder = path.parent().context("no folder")?;
    std::fs::create_dir_all(folder)?;
    std::fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

impl Tree {
    /// Copies the working tree, and puts `mutants` into it.
    pub(super) fn new(mutants: &[Mutant]) -> Result<Self> {
        let path = target_dir().join("mutants");
        let apart = mutants.iter().filter(|mutant| !mutant.is_switchable()).map(|mutant| mutant.number);
        let apart = apart.collect();
        let mut tree = Tree { path, files: BTreeMap::new(), apart, invalid: BTreeSet::new() };
        let packages: BTreeSet<_> = mutants.iter().filter_map(Mutant::package).collect();
        let switched: BTreeSet<_> = packages.iter().map(|package| format!("{package}/src/lib.rs")).collect();
        let changed: BTreeSet<_> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
        let files = output(&mut command("git", ["ls-files", "-co", "--exclude-standard"]))?;
        for file in files.lines().filter(|file| !changed.contains(file)) {
            let Ok(mut contents) = std::fs::read(root().join(file)) else { continue };
            if switched.contains(file) {
                contents.extend(SWITCH.as_bytes());
            }
            write(&tree.path.join(file), &contents)?;
        }
        tree.put(mutants)?;
        Ok(tree)
    }

    /// Writes the files with all mutants that are left to be built together.
    fn put(&mut self, mutants: &[Mutant]) -> Result<()> {
        let mut files = BTreeMap::<&str, Vec<&Mutant>>::new();
        for mutant in mutants {
            let together = !self.apart.contains(&mutant.number) && !self.invalid.contains(&mutant.number);
            files.entry(&mutant.file).or_default().extend(together.then_some(mutant));
        }
        for (file, mutants) in files {
            let text = std::fs::read_to_string(root().join(file))?;
            let file_with = switched(&text, &mutants)?;
            write(&self.path.join(file), file_with.text.as_bytes())?;
            self.apart.extend(&file_with.left);
            self.files.insert(file.to_owned(), file_with);
        }
        Ok(())
    }

    /// Builds the test programs, without the mutants that cannot be compiled.
    pub(super) fn build(&mut self, mutants: &[Mutant], tests: &Tests) -> Result<Vec<Program>> {
        loop {
            let messages = match self.compile(tests)? {
                Ok(programs) => return Ok(programs),
                Err(messages) => messages,
            };
            let before = (self.apart.len(), self.invalid.len());
            messages.iter().for_each(|message| self.blame(message));
            if (self.apart.len(), self.invalid.len()) == before {
                let text = |message: &Value| message["rendered"].as_str().unwrap_or_default().to_owned();
                bail!("{}", messages.iter().map(text).collect::<String>());
            }
            self.put(mutants)?;
        }
    }

    /// Builds the test programs with one mutant alone; `None` if it cannot be compiled.
    pub(super) fn build_apart(&mut self, mutant: &Mutant, tests: &Tests) -> Result<Option<Vec<Program>>> {
        let text = std::fs::read_to_string(root().join(&mutant.file))?;
        let path = self.path.join(&mutant.file);
        write(&path, changed(&text, mutant)?.as_bytes())?;
        let compiled = self.compile(tests)?;
        let before = self.files.get(&mutant.file).context("not one of the files")?;
        write(&path, before.text.as_bytes())?;
        Ok(compiled.ok())
    }

    /// The programs, or the compiler's errors.
    fn compile(&self, tests: &Tests) -> Result<std::result::Result<Vec<Program>, Vec<Value>>> {
        let mut cargo = command("cargo", ["test", "--no-run", "--message-format", "json", "--quiet"]);
        cargo.args(["--package", tests.package]).args(tests.targets).current_dir(&self.path);
        // Not that of the working tree: cargo would take the one's programs for the other's.
        let done = cargo.env("CARGO_TARGET_DIR", self.path.join("target")).output();
        let done = done.context("cannot start cargo")?;
        let messages = String::from_utf8_lossy(&done.stdout);
        let messages: Vec<Value> =
            messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let errors = messages.iter().map(|message| &message["message"]);
        let errors: Vec<Value> = errors.filter(|message| message["level"] == "error").cloned().collect();
        if !errors.is_empty() {
            return Ok(Err(errors));
        }
        if !done.status.success() {
            bail!("{}", String::from_utf8_lossy(&done.stderr));
        }
        let program = |message: &Value| {
            let manifest = Path::new(message["manifest_path"].as_str()?);
            let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
            Some(Program { path: path.into(), folder: manifest.parent()?.to_owned() })
        };
        Ok(Ok(messages.iter().filter_map(program).collect()))
    }

    /// Leaves out the mutant that an error is in; if it is only in a function with mutants, those are built apart.
    fn blame(&mut self, error: &Value) {
        let spans = error["spans"].as_array().into_iter().flatten();
        for span in spans.filter(|span| span["is_primary"] == true) {
            let file = span["file_name"].as_str().and_then(|file| self.files.get(file));
            let at = span["byte_start"].as_u64().and_then(|at| usize::try_from(at).ok());
            let Some((file, at)) = file.zip(at) else { continue };
            match file.places.iter().find(|(_, place)| place.contains(&at)) {
                Some((mutant, _)) => _ = self.invalid.insert(*mutant),
                None => {
                    let functions = file.functions.iter().filter(|(_, place)| place.contains(&at));
                    self.apart.extend(functions.flat_map(|(mutants, _)| mutants));
                }
            }
        }
    }
}
