package gitstore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitignore"
)

// maxIgnoreFiles bounds the .gitignore files of one commit that are read. The files that the
// rest would ignore count as not ignored.
const maxIgnoreFiles = 500

// ignoring tells which files of a difference are ignored: the .gitignore files of the commit
// that has the file say so, and the origin's commit does not have it, so that it is not one
// that git tracks all the same.
type ignoring struct {
	from, to ignoredFiles
	// tracked are those of the ignored files that the base has.
	tracked map[string]bool
}

// match reports whether a file of the difference is ignored.
func (i *ignoring) match(e gitdiff.Entry) bool {
	side := &i.to
	if e.Status == 'D' {
		side = &i.from
	}
	return side.match(e.Path) && !i.tracked[e.Path]
}

// ignoring reads what both commits ignore.
func (d *differ) ignoring() (i *ignoring, err error) {
	i = &ignoring{tracked: map[string]bool{}}
	if i.from, err = d.ignoredFiles(d.from); err != nil {
		return nil, err
	}
	i.to, err = d.ignoredFiles(d.to)
	return i, err
}

// track finds out which of the ignored files the task's base has. Paths with a line break, in
// which git cannot be asked, count as not tracked.
func (d *differ) track(i *ignoring, ignored []string) error {
	base, err := d.base(d.uid)
	if err != nil {
		return err
	}
	ignored = slices.DeleteFunc(ignored, func(p string) bool { return strings.ContainsAny(p, "\n\r") })
	if len(ignored) == 0 {
		return nil
	}
	var asked bytes.Buffer
	for _, p := range ignored {
		fmt.Fprintf(&asked, "%s:%s\n", base, p)
	}
	out, err := d.run(&asked, "cat-file", "--batch-check=%(objecttype)")
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(out) {
		if n < len(ignored) && !strings.HasSuffix(line, " missing\n") {
			i.tracked[ignored[n]] = true
		}
		n++
	}
	return nil
}

// ignoredFiles are the .gitignore files of a commit, by folder.
type ignoredFiles struct {
	texts   map[string][]byte
	rules   map[string]*gitignore.Rules // of each folder, with those of its outer folders
	folders map[string]bool             // whether each folder is ignored
}

// ignoreFile is a .gitignore file of a commit.
type ignoreFile struct{ id, folder string }

// ignoredFiles reads the .gitignore files of a commit.
func (d *differ) ignoredFiles(commit string) (ignoredFiles, error) {
	f := ignoredFiles{map[string][]byte{}, map[string]*gitignore.Rules{}, map[string]bool{}}
	var files []ignoreFile
	err := d.stream(func(in *bufio.Reader) error {
		records := bufio.NewScanner(in)
		records.Buffer(nil, maxRecordBytes)
		records.Split(untilNUL)
		for records.Scan() && len(files) < maxIgnoreFiles {
			entry, name, _ := strings.Cut(records.Text(), "\t")
			if fields := strings.Fields(entry); path.Base(name) == ".gitignore" && len(fields) == 3 && fields[1] == "blob" {
				files = append(files, ignoreFile{fields[2], folderOf(name)})
			}
		}
		if len(files) == maxIgnoreFiles {
			return errPageFull
		}
		return records.Err()
	}, "ls-tree", "-r", "-z", commit)
	if err != nil && !errors.Is(err, errPageFull) {
		return f, err
	}
	// Outer folders first: they decide most.
	slices.SortStableFunc(files, func(a, b ignoreFile) int { return strings.Count(a.folder, "/") - strings.Count(b.folder, "/") })
	if files, err = d.withoutLarge(files); err != nil {
		return f, err
	}
	texts, err := d.blobs(files)
	for i, text := range texts {
		f.texts[files[i].folder] = text
	}
	return f, err
}

// withoutLarge leaves out the files that are too large to be applied.
func (d *differ) withoutLarge(files []ignoreFile) ([]ignoreFile, error) {
	if len(files) == 0 {
		return nil, nil
	}
	out, err := d.run(idsOf(files), "cat-file", "--batch-check=%(objectsize)")
	if err != nil {
		return nil, err
	}
	var small []ignoreFile
	for i, text := range strings.Fields(out) {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || i >= len(files) {
			return nil, fmt.Errorf("git cat-file: missing object: %s", out)
		}
		if size <= gitignore.MaxBytes {
			small = append(small, files[i])
		}
	}
	return small, nil
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
			return texts, fmt.Errorf("git cat-file: %w", err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(head), 10, 64)
		if err != nil {
			return texts, fmt.Errorf("git cat-file: missing object: %s", head)
		}
		text := make([]byte, size)
		if _, err := io.ReadFull(in, text); err != nil {
			return texts, fmt.Errorf("git cat-file: %w", err)
		}
		texts = append(texts, text)
		if _, err := in.Discard(1); err != nil {
			return texts, fmt.Errorf("git cat-file: %w", err)
		}
	}
	return texts, nil
}

// match reports whether a file is ignored, itself or with a folder that it is in.
func (f *ignoredFiles) match(name string) bool {
	folder := folderOf(name)
	return f.ignoresFolder(folder) || f.rulesOf(folder).Match(name, false)
}

func (f *ignoredFiles) ignoresFolder(folder string) bool {
	if folder == "" {
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
	if text, ok := f.texts[folder]; ok {
		rules = rules.With(folder, text)
	}
	f.rules[folder] = rules
	return rules
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

// folderOf returns the folder that a path is in; "" for the worktree itself.
func folderOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}
