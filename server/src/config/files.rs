//! The files of a configuration, and whether they change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest, Sha256};

use crate::secret::excerpt_of_path;

/// The files that were read, and what was in them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    paths: Vec<PathBuf>,
    digest: Vec<u8>,
    contents: Contents,
}

/// The contents of settings and domain files, and of directories. Keys and certificates are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    files: BTreeMap<PathBuf, String>,
    directories: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Read {
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn has_changed(&self) -> bool {
        let mut files = Files::default();
        for file in self.paths.iter().flat_map(|path| files_at(path).unwrap_or_default()) {
            // A file that cannot be read has not been added before, either.
            if let Ok(content) = fs::read(&file) {
                files.add(&file, &content);
            }
        }
        files.hasher.finalize().as_slice() != self.digest
    }
}

#[derive(Default)]
pub(super) struct Files<'a> {
    paths: Vec<PathBuf>,
    hasher: Sha256,
    contents: Contents,
    /// The contents that were read before, instead of those of now.
    before: Option<&'a Contents>,
}

impl<'a> Files<'a> {
    pub(super) fn new(before: Option<&'a Contents>) -> Self {
        Self { before, ..Self::default() }
    }

    /// A file or directory, also one that cannot be read yet.
    pub(super) fn watch(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    pub(super) fn read(&mut self, file: &Path) -> io::Result<Vec<u8>> {
        let content = fs::read(file)?;
        self.add(file, &content);
        Ok(content)
    }

    /// A file, or the files of a directory.
    pub(super) fn list(&mut self, path: &Path) -> Result<Vec<PathBuf>, String> {
        self.watch(path.to_owned());
        let files = match self.before {
            Some(before) => before.directories.get(path).cloned().unwrap_or_default(),
            None => files_at(path)?,
        };
        self.contents.directories.insert(path.to_owned(), files.clone());
        Ok(files)
    }

    pub(super) fn read_text(&mut self, file: &Path) -> io::Result<String> {
        let text = match self.before {
            Some(before) => before.files.get(file).cloned().ok_or(io::ErrorKind::NotFound)?,
            None => String::from_utf8(self.read(file)?)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
        };
        self.contents.files.insert(file.to_owned(), text.clone());
        Ok(text)
    }

    fn add(&mut self, file: &Path, content: &[u8]) {
        self.hasher.update(file.as_os_str().as_encoded_bytes());
        self.hasher.update((content.len() as u64).to_be_bytes());
        self.hasher.update(content);
    }

    pub(super) fn into_read(self) -> Read {
        let Self { paths, hasher, contents, .. } = self;
        Read { paths, digest: hasher.finalize().to_vec(), contents }
    }
}

/// A file, or the files of a directory and of those in it, by name. All have to be YAML: nothing that may
/// have limits is ignored. Hidden files and backups are.
fn files_at(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    add_files(path, &mut files)?;
    if files.is_empty() {
        return Err(format!("{}: no file ends with .yaml or .yml", excerpt_of_path(path)));
    }
    files.sort();
    Ok(files)
}

fn add_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let error = |error: io::Error| format!("{}: {error}", excerpt_of_path(directory));
    for entry in fs::read_dir(directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        let (path, name) = (entry.path(), entry.file_name());
        let (name, extension) = (name.to_string_lossy(), path.extension());
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        // Links to directories are not followed, because they can lead back here.
        if entry.file_type().map_err(error)?.is_dir() {
            add_files(&path, files)?;
        } else if extension.is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
        } else {
            return Err(format!(
                "{}: only files that end with .yaml or .yml are read: rename it, or move it elsewhere",
                excerpt_of_path(&path)
            ));
        }
    }
    Ok(())
}
