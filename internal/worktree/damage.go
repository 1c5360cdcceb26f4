package worktree

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// inconclusive reports whether git failed before it could establish that the objects it read
// are damaged. Running out of memory may be conclusive: a damaged size makes git request an
// arbitrary amount.
func (r *Repo) inconclusive(err error) bool {
	if !interrupted(err) {
		return false
	}
	said := stderrOf(err)
	named := unreadObject.FindStringSubmatch(said)
	return named == nil || !outOfMemory.MatchString(said) || !r.damagedIn(named[2], named[1])
}

// unreadObject matches git's message about a packed object that it could not read, and the pack.
var unreadObject = regexp.MustCompile(`(?m)^fatal: packed object ([0-9a-f]{40}) \(stored in (.+)\.pack\) is corrupt`)

// damagedIn reports whether an object in a pack, named without its extension, or one of the
// object's delta bases, differs from what was written. It uses some 50 bytes of memory for
// each object of the pack.
func (r *Repo) damagedIn(pack, id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ids := map[string]bool{}
	for !ids[id] {
		ids[id] = true
		out, _ := r.git(ctx, gitCall{args: []string{"cat-file", "--batch-check=%(deltabase)"}, stdin: strings.NewReader(id + "\n")})
		base, err := parseOID(strings.TrimSpace(string(out)))
		if err != nil || base.isZero() {
			break // not a delta, or too damaged to tell
		}
		id = base.String()
	}
	entries, err := r.packedEntries(ctx, pack, ids)
	if err != nil {
		return false
	}
	content, err := os.Open(pack + ".pack")
	if err != nil {
		return false
	}
	defer func() { _ = content.Close() }() // only read
	return slices.ContainsFunc(entries, func(e packedEntry) bool {
		sum := crc32.NewIEEE()
		_, err := io.Copy(sum, io.NewSectionReader(content, e.from, e.to-e.from))
		return err == nil && sum.Sum32() != e.sum
	})
}

// packedEntry is an object's entry in a pack's index: the byte range of the pack that stores
// it, and the CRC-32 of that range (gitformat-pack, version 2 of the index).
type packedEntry struct {
	from, to int64
	sum      uint32
}

// packedEntries reads the entries with these ids from a pack's index.
func (r *Repo) packedEntries(ctx context.Context, pack string, ids map[string]bool) ([]packedEntry, error) {
	index, err := os.Open(pack + ".idx")
	if err != nil {
		return nil, err
	}
	defer func() { _ = index.Close() }() // only read
	info, err := os.Stat(pack + ".pack")
	if err != nil {
		return nil, err
	}
	out, in := io.Pipe()
	defer func() { _ = out.Close() }()
	go func() {
		_, err := r.git(ctx, gitCall{args: []string{"show-index"}, stdin: index, stdout: in})
		_ = in.CloseWithError(err) // never fails
	}()
	const trailer = 20 // the pack's own checksum
	offsets := []int64{info.Size() - trailer}
	var found []packedEntry
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e packedEntry
		var id string
		if _, err := fmt.Sscanf(lines.Text(), "%d %s (%x)", &e.from, &id, &e.sum); err != nil {
			return nil, err
		}
		offsets = append(offsets, e.from)
		if ids[id] {
			found = append(found, e)
		}
	}
	slices.Sort(offsets)
	for i := range found {
		next, _ := slices.BinarySearch(offsets, found[i].from+1)
		found[i].to = offsets[min(next, len(offsets)-1)]
	}
	return found, lines.Err()
}
