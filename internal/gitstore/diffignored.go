package gitstore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitignore"
)

// Limits of what is read to find out which files are ignored. Beyond them, files count as not
// ignored, and are shown.
const (
	// maxTreeEntries is the number of entries of a commit.
	maxTreeEntries = 2_000_000
	// maxIgnoreFiles is the number of .gitignore files of a commit, and maxIgnoreBytes the
	// size of those that apply to files that differ.
	maxIgnoreFiles, maxIgnoreBytes = 5000, 256 << 10
	// maxHidden is the number of ignored files that differ.
	maxHidden = 200_000
	// maxMatchedPath and maxMatchedDepth are the longest path that is matched: each of its
	// folders is.
	maxMatchedPath, maxMatchedDepth = 1024, 64
)

// pathSet is a large set of paths, by their hashes: of two paths with one hash it knows both
// if it knows one. No agent can foresee the hashes.
type pathSet struct {
	seed   maphash.Seed
	hashes map[uint64]bool
}

func newPathSet() pathSet { return pathSet{maphash.MakeSeed(), map[uint64]bool{}} }

func (p pathSet) add(path string)      { p.hashes[maphash.String(p.seed, path)] = true }
func (p pathSet) remove(path string)   { delete(p.hashes, maphash.String(p.seed, path)) }
func (p pathSet) has(path string) bool { return p.hashes[maphash.String(p.seed, path)] }

// hidden returns the files that differ and are ignored: the .gitignore files of the commit
// that has the file say so, and the task's base does not have it. A file that the base has is
// tracked all the same, and is never hidden.
func (d *differ) hidden(q pagedQuery) (pathSet, error) {
	hidden := newPathSet()
	from, err := d.ignoredFiles(d.from)
	if err != nil {
		return hidden, err
	}
	to, err := d.ignoredFiles(d.to)
	if err != nil {
		return hidden, err
	}
	err = d.eachFile(func(e gitdiff.Entry) {
		side := to
		if e.Status == 'D' {
			side = from
		}
		if len(hidden.hashes) < maxHidden && q.paths.Match(e.Path) && side.match(e.Path) {
			hidden.add(e.Path)
		}
	})
	if err != nil || len(hidden.hashes) == 0 {
		return hidden, err
	}
	base, err := d.base(d.uid)
	if err != nil || base == emptyTree {
		return hidden, err
	}
	err = d.eachEntry(base, func(_ []string, name string) { hidden.remove(name) })
	if errors.Is(err, errTooManyEntries) {
		return newPathSet(), nil // some might be tracked
	}
	return hidden, err
}

// errTooManyEntries ends the reading of a commit with too many entries.
var errTooManyEntries = errors.New("the commit has too many files")

// eachEntry calls use with each file of a commit: its mode, type and id, and its path. It
// fails with errTooManyEntries.
func (d *differ) eachEntry(commit string, use func(fields []string, name string)) error {
	return d.stream(func(in *bufio.Reader) error {
		records := bufio.NewScanner(in)
		records.Buffer(nil, maxRecordBytes)
		records.Split(untilNUL)
		for n := 0; records.Scan(); n++ {
			if n == maxTreeEntries {
				return errTooManyEntries
			}
			entry, name, _ := strings.Cut(records.Text(), "\t")
			if fields := strings.Fields(entry); len(fields) == 3 {
				use(fields, name)
			}
			if d.ctx.Err() != nil {
				return d.ctx.Err()
			}
		}
		return records.Err()
	}, "ls-tree", "-r", "-z", commit)
}

// maxRecordBytes is the longest record of a tree that is read.
const maxRecordBytes = 64 << 10

// untilNUL splits git's output at NULs.
func untilNUL(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// ignoredFiles are the .gitignore files of a commit, by folder.
type ignoredFiles struct {
	files   map[string]*gitignore.File
	rules   map[string]*gitignore.Rules // of each folder, with those of its outer folders
	folders map[string]bool             // whether each folder is ignored
}

// ignoreFile is a .gitignore file of a commit.
type ignoreFile struct{ id, folder string }

// ignoredFiles reads the .gitignore files of a commit that apply to anything: from the
// worktree down, without those in ignored folders.
func (d *differ) ignoredFiles(commit string) (*ignoredFiles, error) {
	f := &ignoredFiles{map[string]*gitignore.File{}, map[string]*gitignore.Rules{}, map[string]bool{}}
	var all []ignoreFile
	err := d.eachEntry(commit, func(fields []string, name string) {
		if path.Base(name) != ".gitignore" || len(all) > maxIgnoreFiles {
			return
		}
		file := ignoreFile{fields[2], folderOf(name)}
		if !strings.HasPrefix(fields[0], "100") {
			file.id = "" // git does not follow a link
		}
		all = append(all, file)
	})
	if errors.Is(err, errTooManyEntries) || err == nil && len(all) > maxIgnoreFiles {
		f.files[""] = gitignore.Unreadable()
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b ignoreFile) int { return depth(a.folder) - depth(b.folder) })
	room := int64(maxIgnoreBytes)
	for len(all) > 0 {
		level := depth(all[0].folder)
		n := slices.IndexFunc(all, func(a ignoreFile) bool { return depth(a.folder) != level })
		if n < 0 {
			n = len(all)
		}
		if room, err = d.readLevel(f, all[:n], room); err != nil {
			return nil, err
		}
		all = all[n:]
	}
	return f, nil
}

// depth returns the number of folders that a folder is in, with itself.
func depth(folder string) int {
	if folder == "" {
		return 0
	}
	return strings.Count(folder, "/") + 1
}

// readLevel reads the files of folders of one depth. room is how many bytes may be read; it
// returns what is left of that.
func (d *differ) readLevel(f *ignoredFiles, files []ignoreFile, room int64) (int64, error) {
	files = slices.DeleteFunc(slices.Clone(files), func(a ignoreFile) bool { return a.id == "" || f.ignoresFolder(a.folder) })
	sizes, err := d.sizes(files)
	if err != nil {
		return room, err
	}
	var readable []ignoreFile
	for i, file := range files {
		if room -= sizes[i]; sizes[i] > gitignore.MaxBytes || room < 0 {
			f.files[file.folder] = gitignore.Unreadable()
			continue
		}
		readable = append(readable, file)
	}
	texts, err := d.blobs(readable)
	if err != nil {
		return room, err
	}
	parsed := map[string]*gitignore.File{}
	for i, file := range readable {
		if parsed[file.id] == nil {
			parsed[file.id] = gitignore.Parse(texts[i])
		}
		f.files[file.folder] = parsed[file.id]
	}
	return room, nil
}

// sizes returns the sizes of files.
func (d *differ) sizes(files []ignoreFile) ([]int64, error) {
	if len(files) == 0 {
		return nil, nil
	}
	out, err := d.run(idsOf(files), "cat-file", "--batch-check=%(objectsize)")
	if err != nil {
		return nil, err
	}
	var sizes []int64
	for text := range strings.Lines(out) {
		size, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("git cat-file: missing object: %s", text)
		}
		sizes = append(sizes, size)
	}
	if len(sizes) != len(files) {
		return nil, fmt.Errorf("git cat-file printed %d sizes of %d files", len(sizes), len(files))
	}
	return sizes, nil
}

func idsOf(files []ignoreFile) io.Reader {
	var ids bytes.Buffer
	for _, f := range files {
		fmt.Fprintln(&ids, f.id)
	}
	return &ids
}

// blobs reads the contents of files.
func (d *differ) blobs(files []ignoreFile) ([][]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	out, err := d.run(idsOf(files), "cat-file", "--batch=%(objectsize)")
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(strings.NewReader(out))
	texts := make([][]byte, 0, len(files))
	for range files {
		head, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("git cat-file: %w", err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(head), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("git cat-file: missing object: %s", head)
		}
		text := make([]byte, size+1) // and a line break
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, fmt.Errorf("git cat-file: %w", err)
		}
		texts = append(texts, text[:size])
	}
	return texts, nil
}

// match reports whether a file is ignored, itself or with a folder that it is in.
func (f *ignoredFiles) match(name string) bool {
	if len(name) > maxMatchedPath || strings.Count(name, "/") > maxMatchedDepth {
		return false
	}
	folder := folderOf(name)
	return f.ignoresFolder(folder) || f.rulesOf(folder).Match(name, false)
}

func (f *ignoredFiles) ignoresFolder(folder string) bool {
	if folder == "" || len(folder) > maxMatchedPath || strings.Count(folder, "/") > maxMatchedDepth {
		return false
	}
	if ignored, known := f.folders[folder]; known {
		return ignored
	}
	outer := folderOf(folder)
	ignored := f.ignoresFolder(outer) || f.rulesOf(outer).Match(folder, true)
	f.folders[folder] = ignored
	return ignored
}

// rulesOf returns the rules that apply in a folder.
func (f *ignoredFiles) rulesOf(folder string) *gitignore.Rules {
	if rules, known := f.rules[folder]; known {
		return rules
	}
	var rules *gitignore.Rules
	if folder != "" {
		rules = f.rulesOf(folderOf(folder))
	}
	if file, ok := f.files[folder]; ok {
		rules = rules.With(folder, file)
	}
	f.rules[folder] = rules
	return rules
}

// folderOf returns the folder that a path is in; "" for the worktree itself.
func folderOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}
