package gitstore

import (
	"bufio"
	"context"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// listing is a page of the files that differ, by path, with the totals of all.
type listing struct {
	how    gitstoreapi.Listing
	totals gitstoreapi.DiffTotals
	page   []gitdiff.Entry
	// hidden are the files that are left out.
	hidden pathSet
}

// list lists the files of a query: with their lines, and with renamed files found, if git can
// compare them within its limits.
func (d *differ) list(q pagedQuery) (listing, error) {
	c := &chosen{query: q, hidden: newPathSet()}
	var err error
	switch {
	case q.Restored:
		c.hidden, err = d.unrestored(q.From)
	case !q.Ignored:
		c.hidden, err = d.hidden(q)
	}
	if err != nil {
		return listing{}, err
	}
	if err := d.eachFile(c.add); err != nil {
		return listing{}, err
	}
	l := listing{how: gitstoreapi.ListingNames, page: c.page, hidden: c.hidden}
	l.totals = gitstoreapi.DiffTotals{Files: c.selected, UncountedFiles: c.selected, IgnoredFiles: c.ignored}
	if q.Listing == gitstoreapi.ListingNames || !c.comparable() {
		return l, nil
	}
	entries, err := d.compare(c)
	switch {
	case err == nil:
	case d.ctx.Err() != nil || damaged.MatchString(err.Error()):
		return listing{}, err
	default:
		return l, nil // git needed more memory or time for some file than it may use
	}
	l.how, l.totals = gitstoreapi.ListingCompared, gitstoreapi.DiffTotals{IgnoredFiles: c.ignored}
	addTotals(&l.totals, entries)
	l.page = pageOf(entries, q)
	return l, nil
}

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

// pageOf returns the entries of a page, as many as can be given to git as arguments.
func pageOf(entries []gitdiff.Entry, q pagedQuery) []gitdiff.Entry {
	entries = entries[min(q.After, len(entries)):]
	entries = entries[:min(q.Limit, len(entries))]
	size := 0
	for i, e := range entries {
		if size += len(e.Path) + len(e.OldPath); size > maxArgumentBytes && i > 0 {
			return entries[:i]
		}
	}
	return entries
}

// chosen are the files of a difference that a query is about.
type chosen struct {
	query  pagedQuery
	hidden pathSet
	// selected is the number of the files, and ignored of those that are left out as ignored.
	selected, ignored int64
	// first are the selected files, as far as git can compare them, and page those of the page.
	first, page []gitdiff.Entry
	// firstBytes and pageBytes are the lengths of their paths.
	firstBytes, pageBytes int
}

// add adds the next file by path.
func (c *chosen) add(e gitdiff.Entry) {
	switch {
	case !c.query.paths.Match(e.Path):
		return
	case c.hidden.has(e.Path):
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
	if c.pageBytes += len(e.Path); c.pageBytes <= maxArgumentBytes || len(c.page) == 0 {
		c.page = append(c.page, e)
	}
}

// comparable reports whether git can compare the files within its limits.
func (c *chosen) comparable() bool { return c.selected == int64(len(c.first)) }

// compare lists the files with their lines, and finds renamed ones. Git looks at the chosen
// files only: it must not find that one was renamed from a file that is left out, which
// nobody could apply. If their paths are too long for that, no file counts as renamed.
func (d *differ) compare(c *chosen) ([]gitdiff.Entry, error) {
	if len(c.first) == 0 {
		return nil, nil
	}
	args := []string{"--raw", "--numstat", "--find-renames", "-l" + renameLimit, "--end-of-options", d.from, d.to, "--"}
	if c.firstBytes <= maxArgumentBytes {
		for _, e := range c.first {
			args = append(args, e.Path)
		}
	} else {
		args[2] = "--no-renames"
	}
	short := *d
	var cancel context.CancelFunc
	short.ctx, cancel = context.WithTimeout(d.ctx, compareTime)
	defer cancel()
	var entries []gitdiff.Entry
	err := short.diffTree(func(in *bufio.Reader) error {
		err := gitdiff.Each(in, func(e gitdiff.Entry) error { entries = append(entries, e); return nil })
		if err != nil {
			return err
		}
		return gitdiff.Counts(in, entries)
	}, args...)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, e := range c.first {
		wanted[e.Path] = true
	}
	entries = slices.DeleteFunc(entries, func(e gitdiff.Entry) bool { return !wanted[e.Path] })
	slices.SortStableFunc(entries, func(a, b gitdiff.Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, nil
}
