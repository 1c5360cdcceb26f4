package gitstore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Limits of a difference. What exceeds them is left out, and counted.
const (
	// maxComparedFiles is the number of files up to which git looks for renamed files and
	// counts lines, and maxComparedBytes the length of their paths: an agent chooses both.
	maxComparedFiles, maxComparedBytes = 10_000, 8 << 20
	// maxContentBytes is the size of the largest file whose content is compared: git holds
	// both versions in memory.
	maxContentBytes = 4 << 20
	// maxPatchBytes is the size of the largest patch of one file, and maxPageBytes of all
	// patches of a page.
	maxPatchBytes, maxPageBytes = 1 << 20, 4 << 20
	// maxPagePathBytes bounds the paths that are given to git as arguments.
	maxPagePathBytes = 512 << 10
	// renameLimit is the number of added, or of deleted, files above which git only finds
	// files that were renamed without a change.
	renameLimit = "400"
)

// differ compares two commits of a repository.
type differ struct {
	ctx context.Context
	git git
	// path is the repository's folder, and held are locks that git inherits.
	path string
	held []*os.File
	// uid is the task's whose points have no UID.
	uid string

	from, to string // commits
	renames  bool   // renamed files are looked for
	full     bool   // the page has as much content as it may have
}

// run runs git in the repository.
func (d *differ) run(stdin io.Reader, args ...string) (string, error) {
	return d.git.runWith(d.ctx, d.held, stdin, d.path, append([]string{"--git-dir=."}, args...)...)
}

// diffTree runs git diff-tree and passes its output to use, which may stop early with an error.
func (d *differ) diffTree(use func(*bufio.Reader) error, args ...string) error {
	return d.stream(use, append([]string{"--literal-pathspecs", "-c", "core.bigFileThreshold=" + strconv.Itoa(maxContentBytes),
		"diff-tree", "-r", "-z", "--abbrev=40", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none"}, args...)...)
}

// stream runs git and passes its output to use, which may stop early with an error.
func (d *differ) stream(use func(*bufio.Reader) error, args ...string) error {
	args = append([]string{"--git-dir=."}, args...)
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	command := d.git.command(ctx, d.path, args...)
	command.ExtraFiles = d.held
	stderr := &tail{limit: 4 << 10}
	command.Stderr = stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.git.start(command); err != nil {
		return err
	}
	used := use(bufio.NewReaderSize(stdout, 64<<10))
	if used != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, stdout) // git ends early if its output was not wanted
	waited := d.git.wait(command)
	switch {
	case errors.Is(used, errPageFull):
		return used
	case waited != nil && d.ctx.Err() == nil && (used == nil || ctx.Err() == nil || stderr.String() != ""):
		return fmt.Errorf("git: %w: %s", waited, stderr)
	}
	return cmp.Or(used, d.ctx.Err(), waited)
}

// renameArgs returns the options of git that say whether renamed files are looked for.
func (d *differ) renameArgs() []string {
	if d.renames {
		return []string{"--find-renames", "-l" + renameLimit}
	}
	return []string{"--no-renames"}
}

// page answers a query.
func (d *differ) page(q pagedQuery) (gitstoreapi.Diff, error) {
	var answer gitstoreapi.Diff
	var err error
	if d.from, err = d.resolve(q.From); err != nil {
		return answer, err
	}
	if d.to, err = d.resolve(q.To); err != nil {
		return answer, err
	}
	if q.FromCommit != "" && q.FromCommit != d.from || q.ToCommit != "" && q.ToCommit != d.to {
		return answer, gitstoreapi.New(gitstoreapi.Moved, "the files have changed since the first page: begin again")
	}
	answer.FromCommit, answer.ToCommit = d.from, d.to
	all, skipped, err := d.list(q, &answer.Totals)
	if err != nil {
		return answer, err
	}
	entries := all[min(q.After-skipped, len(all)):]
	entries = entries[:min(q.Limit, pathsWithin(entries, maxPagePathBytes))]
	if answer.Files, err = d.describe(entries); err != nil {
		return answer, err
	}
	if q.Format != "" {
		if answer.Files, err = d.addContent(entries, answer.Files, q.Format); err != nil {
			return answer, err
		}
	}
	if next := q.After + len(answer.Files); int64(next) < answer.Totals.Files {
		answer.Next = next
	}
	return answer, nil
}

// pathsWithin returns how many of the entries' paths fit into a number of bytes, at least one.
func pathsWithin(entries []gitdiff.Entry, limit int) int {
	size := 0
	for i, e := range entries {
		if size += len(e.Path) + len(e.OldPath); size > limit {
			return max(i, 1)
		}
	}
	return len(entries)
}

// list returns the files that differ, by path, and their totals. If there are too many for
// git to compare, it returns those of the page only, with how many it skipped.
func (d *differ) list(q pagedQuery, totals *gitstoreapi.DiffTotals) (entries []gitdiff.Entry, skipped int, err error) {
	c, err := d.choose(q)
	if err != nil {
		return nil, 0, err
	}
	totals.IgnoredFiles = c.ignored
	var paths []string
	var possible bool
	if paths, d.renames, possible = c.comparable(); possible {
		if entries, err = d.compare(c, paths); err == nil {
			addTotals(totals, entries)
			return entries, 0, nil
		}
		if d.ctx.Err() != nil || damaged.MatchString(err.Error()) {
			return nil, 0, err
		}
		d.renames = false // git needed more memory for some file than it may use
	}
	totals.Files, totals.UncountedFiles = c.selected, c.selected
	return c.page, q.After, nil
}

// chosen are the files of a difference that a query is about.
type chosen struct {
	query pagedQuery
	// ignoring leaves out ignored files; nil if it leaves out none.
	ignoring *ignoring
	// all is the number of files that differ, selected of those that the query is about, and
	// ignored of those that it leaves out.
	all               int
	selected, ignored int64
	// first are the selected files, as far as git can compare them, and page those of the page.
	first, page []gitdiff.Entry
	// bytes, firstBytes and pageBytes are the lengths of the paths of all, first and page.
	bytes, firstBytes, pageBytes int
}

// choose lists the files of a query, without renames and lines.
func (d *differ) choose(q pagedQuery) (*chosen, error) {
	c := &chosen{query: q}
	if !q.Ignored {
		var err error
		if c.ignoring, err = d.ignoring(); err != nil {
			return nil, err
		}
		if err := d.trackIgnored(c); err != nil {
			return nil, err
		}
	}
	return c, d.eachFile(func(e gitdiff.Entry) { c.add(e) })
}

// eachFile calls use with each file that differs, by path.
func (d *differ) eachFile(use func(gitdiff.Entry)) error {
	return d.diffTree(func(in *bufio.Reader) error {
		return gitdiff.Each(in, func(e gitdiff.Entry) error { use(e); return nil })
	}, "--raw", "--no-renames", "--end-of-options", d.from, d.to)
}

// trackIgnored finds the ignored files that git tracks all the same.
func (d *differ) trackIgnored(c *chosen) error {
	var ignored []string
	bytes := 0
	err := d.eachFile(func(e gitdiff.Entry) {
		if !c.query.paths.Match(e.Path) || !c.ignoring.match(e) || len(ignored) == maxComparedFiles {
			return
		}
		if bytes += len(e.Path); bytes <= maxComparedBytes {
			ignored = append(ignored, e.Path)
		}
	})
	if err != nil || len(ignored) == 0 {
		return err
	}
	return d.track(c.ignoring, ignored)
}

// has reports whether the query is about a file.
func (c *chosen) has(e gitdiff.Entry) bool {
	return (c.query.paths.Match(e.Path) || c.query.paths.Match(e.OldPath)) && (c.ignoring == nil || !c.ignoring.match(e))
}

// add adds the next file by path.
func (c *chosen) add(e gitdiff.Entry) {
	c.all++
	c.bytes += len(e.Path)
	switch {
	case !c.query.paths.Match(e.Path):
		return
	case !c.has(e):
		c.ignored++
		return
	}
	c.selected++
	if c.firstBytes += len(e.Path); len(c.first) < maxComparedFiles && c.firstBytes <= maxComparedBytes {
		c.first = append(c.first, e)
	}
	if c.selected <= int64(c.query.After) || len(c.page) == c.query.Limit {
		return
	}
	if c.pageBytes += len(e.Path); c.pageBytes <= maxPagePathBytes || len(c.page) == 0 {
		c.page = append(c.page, e)
	}
}

// comparable reports whether git can compare the files, and how: to which paths it has to be
// restricted, none for all files, and whether it may look for renamed ones. It must not find
// that one was renamed from a file that is left out: nobody could apply that.
func (c *chosen) comparable() (paths []string, renames, possible bool) {
	few := c.all <= maxComparedFiles && c.bytes <= maxComparedBytes
	if few && c.ignored == 0 {
		return nil, true, true
	}
	if c.firstBytes > maxPagePathBytes || c.selected > int64(len(c.first)) {
		return nil, false, few
	}
	for _, e := range c.first {
		paths = append(paths, e.Path)
	}
	return paths, true, true
}

// compare lists the chosen files with their lines, and finds renamed ones.
func (d *differ) compare(c *chosen, paths []string) ([]gitdiff.Entry, error) {
	var entries []gitdiff.Entry
	if len(c.first) == 0 {
		return nil, nil
	}
	args := append([]string{"--raw", "--numstat"}, d.renameArgs()...)
	args = append(append(args, "--end-of-options", d.from, d.to, "--"), paths...)
	err := d.diffTree(func(in *bufio.Reader) error {
		err := gitdiff.Each(in, func(e gitdiff.Entry) error { entries = append(entries, e); return nil })
		if err != nil {
			return err
		}
		return gitdiff.Counts(in, entries)
	}, args...)
	entries = slices.DeleteFunc(entries, func(e gitdiff.Entry) bool { return !c.has(e) })
	slices.SortStableFunc(entries, func(a, b gitdiff.Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, err
}

// errPageFull ends the reading of git's output.
var errPageFull = errors.New("the page is full")

func addTotals(totals *gitstoreapi.DiffTotals, entries []gitdiff.Entry) {
	for _, e := range entries {
		totals.Files++
		totals.LinesAdded += e.Added
		totals.LinesRemoved += e.Removed
		if e.Binary {
			totals.BinaryFiles++
		}
	}
}

// describe returns the files of the entries, with their sizes.
func (d *differ) describe(entries []gitdiff.Entry) ([]gitstoreapi.DiffFile, error) {
	files := make([]gitstoreapi.DiffFile, len(entries))
	var ids bytes.Buffer
	var sizes []*int64
	for i, e := range entries {
		f := &files[i]
		*f = gitstoreapi.DiffFile{Path: gitpath.Quote(e.Path), Action: gitstoreapi.DiffModified, OldMode: e.OldMode, NewMode: e.NewMode,
			Binary: e.Binary, LinesAdded: e.Added, LinesRemoved: e.Removed}
		switch e.Status {
		case 'A':
			f.Action, f.OldMode = gitstoreapi.DiffAdded, ""
		case 'D':
			f.Action, f.NewMode = gitstoreapi.DiffDeleted, ""
		case 'R':
			f.Action, f.OldPath = gitstoreapi.DiffRenamed, gitpath.Quote(e.OldPath)
		}
		for _, side := range []struct {
			mode, id string
			size     *int64
		}{{f.OldMode, e.OldID, &f.OldBytes}, {f.NewMode, e.NewID, &f.NewBytes}} {
			if side.mode != "" && side.mode != nestedRepository {
				fmt.Fprintln(&ids, side.id)
				sizes = append(sizes, side.size)
			}
		}
	}
	out, err := d.run(&ids, "cat-file", "--batch-check=%(objectsize)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if len(sizes) == 0 {
			break
		}
		if *sizes[0], err = strconv.ParseInt(strings.TrimSpace(line), 10, 64); err != nil {
			return nil, fmt.Errorf("git cat-file: missing object: %s", line)
		}
		sizes = sizes[1:]
	}
	return files, nil
}

// nestedRepository is the mode of an entry that names a commit of another repository.
const nestedRepository = "160000"
