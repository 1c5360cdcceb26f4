package gitstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Limits of a difference. What exceeds them is left out, and counted.
const (
	// maxDifferences is the number of files that may differ at all.
	maxDifferences = 2_000_000
	// maxComparedFiles is the number of files up to which git looks for renamed files and
	// counts lines, and maxComparedBytes the length of their paths: an agent chooses both.
	maxComparedFiles, maxComparedBytes = 10_000, 8 << 20
	// maxContentBytes is the size of the largest file whose content is compared: git holds
	// both versions in memory.
	maxContentBytes = 4 << 20
	// maxPatchBytes is the size of the largest patch of one file, and maxPageBytes of all
	// patches of a page. maxHunkLines bounds the lines of a file's hunks, each of which takes
	// much more room than in a patch.
	maxPatchBytes, maxPageBytes = 1 << 20, 4 << 20
	maxHunkLines                = 20_000
	// maxArgumentBytes bounds the paths that are given to git as arguments.
	maxArgumentBytes = 512 << 10
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
	// known is the commit that the task started from; empty if it has to be inferred.
	known string
}

// run runs git in the repository.
func (d *differ) run(stdin io.Reader, args ...string) (string, error) {
	return d.git.runWith(d.ctx, d.held, stdin, d.path, append([]string{"--git-dir=."}, args...)...)
}

// errEnough ends the reading of git's output.
var errEnough = errors.New("no more of git's output is needed")

// diffTree runs git diff-tree and passes its output to use, which may stop early with an error.
func (d *differ) diffTree(use func(*bufio.Reader) error, args ...string) error {
	return d.stream(use, append([]string{"--literal-pathspecs", "-c", "core.bigFileThreshold=" + strconv.Itoa(maxContentBytes),
		"diff-tree", "-r", "-z", "--abbrev=40", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none"}, args...)...)
}

// stream runs git and passes its output to use, which may stop early with an error.
func (d *differ) stream(use func(*bufio.Reader) error, args ...string) error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	command := d.git.command(ctx, d.path, append([]string{"--git-dir=."}, args...)...)
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
		cancel() // git need not print the rest
	}
	_, _ = io.Copy(io.Discard, stdout)
	waited := d.git.wait(command)
	switch {
	case d.ctx.Err() != nil:
		return d.ctx.Err()
	case errors.Is(used, errEnough):
		return used
	case waited != nil && stderr.String() != "":
		return fmt.Errorf("git: %w: %s", waited, stderr)
	case used != nil:
		return used
	}
	return waited
}

// eachFile calls use with each file that differs, by path.
func (d *differ) eachFile(use func(gitdiff.Entry)) error {
	n := 0
	return d.diffTree(func(in *bufio.Reader) error {
		return gitdiff.Each(in, func(e gitdiff.Entry) error {
			if n++; n > maxDifferences {
				return gitstoreapi.New(gitstoreapi.BadRequest, "more than %d files differ, which is too many to list", maxDifferences)
			}
			use(e)
			return d.ctx.Err()
		})
	}, "--raw", "--no-renames", "--end-of-options", d.from, d.to)
}

// page answers a query.
func (d *differ) page(q pagedQuery) (gitstoreapi.Diff, error) {
	var answer gitstoreapi.Diff
	if q.Base != "" {
		var err error
		if d.known, err = d.reached(d.uid, q.Base); err != nil {
			return answer, err
		}
	}
	for _, side := range []struct {
		point, known string
		into         *string
	}{{q.From, q.FromCommit, &d.from}, {q.To, q.ToCommit, &d.to}} {
		id, err := d.resolve(side.point)
		if err != nil {
			return answer, err
		}
		if side.known != "" && id != side.known {
			return answer, gitstoreapi.New(gitstoreapi.Moved, "%s is the commit %s in the gitstore, not %s", side.point, shortID(id), shortID(side.known))
		}
		*side.into = id
	}
	answer.FromCommit, answer.ToCommit = d.from, d.to
	l, err := d.list(q)
	if err != nil {
		return answer, err
	}
	if q.Listing != "" && q.Listing != l.how {
		return answer, gitstoreapi.New(gitstoreapi.Moved, "the files cannot be listed as for the page before: begin again")
	}
	answer.Listing, answer.Totals = l.how, l.totals
	if q.Restored {
		if answer.Unmatched, err = d.unmatched(q.Paths); err != nil {
			return answer, err
		}
		if answer.Blocked, err = d.blocked(q, l.hidden); err != nil {
			return answer, err
		}
	}
	if answer.Files, err = d.describe(l.page); err != nil {
		return answer, err
	}
	if q.Format != "" {
		if answer.Files, err = d.addContent(l.page, answer.Files, q.Format); err != nil {
			return answer, err
		}
	}
	if next := q.After + len(answer.Files); int64(next) < answer.Totals.Files {
		answer.Next = next
	}
	return answer, nil
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
