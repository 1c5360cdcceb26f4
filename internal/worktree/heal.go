package worktree

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// healTime bounds the healing of a remote.
const healTime = 10 * time.Minute

// Heal sends a remote those of the objects that it says are missing or damaged there which this
// repository has, with those that they need and that are lacking as well, and returns how many there
// were. A remote that is no gitstore, or one of an earlier version, says nothing.
//
// Errors: Unreachable, GitFailed.
func (r *Repo) Heal(ctx context.Context, m Remote) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, healTime)
	defer cancel()
	remote := gitstoreapi.RepositoryClient{URL: m.URL, CAFile: m.CAFile, Token: m.Token}
	lacking, err := remote.Lacking(ctx)
	if refused := (*gitstoreapi.Refusal)(nil); errors.As(err, &refused) && refused.Reason == gitstoreapi.NotFound {
		return 0, nil
	}
	if err != nil {
		return 0, fail(Unreachable, err, "cannot ask %s which objects it lacks", m.URL)
	}
	r.packs.RLock()
	defer r.packs.RUnlock()
	count := 0
	for {
		ids := r.intactOf(ctx, lacking.Objects)
		if len(ids) == 0 {
			return count, ctx.Err()
		}
		if lacking, err = r.sendLacking(ctx, remote, ids); err != nil {
			return count, err
		}
		count += len(ids)
	}
}

// sendLacking sends a remote objects that it lacks. What it lacks then are others.
func (r *Repo) sendLacking(ctx context.Context, remote gitstoreapi.RepositoryClient, ids []oid) (lacking gitstoreapi.Lacking, err error) {
	var names bytes.Buffer
	file, err := os.CreateTemp(r.own(""), "tmp_heal_*")
	if err != nil {
		return lacking, failIO(err, "create a pack")
	}
	defer func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }() // a temporary file
	for _, id := range ids {
		names.WriteString(id.String() + "\n")
	}
	if _, err := r.git(ctx, gitCall{args: []string{"pack-objects", "--quiet", "--stdout"}, stdin: &names, stdout: file}); err != nil {
		return lacking, failGit(err, "pack the objects that %s lacks", remote.URL)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return lacking, failIO(err, "read a pack")
	}
	if lacking, err = remote.Heal(ctx, io.NopCloser(file)); err != nil {
		return lacking, fail(Unreachable, err, "cannot send %s the objects that it lacks", remote.URL)
	}
	sent := map[string]bool{}
	for _, id := range ids {
		sent[id.String()] = true
	}
	lacking.Objects = slices.DeleteFunc(lacking.Objects, func(id string) bool { return sent[id] })
	return lacking, nil
}

// intactOf returns those of the objects that this repository has and that are not damaged.
func (r *Repo) intactOf(ctx context.Context, names []string) []oid {
	var left, intact []oid
	for _, name := range names {
		if id, err := parseOID(name); err == nil {
			left = append(left, id)
		}
	}
	for len(left) > 0 && ctx.Err() == nil {
		read := 0
		err := r.eachObject(ctx, left, func(_ int, _ string, _ int64, content io.Reader) error {
			_, err := io.Copy(io.Discard, content)
			if err == nil {
				read++
			}
			return err
		})
		if err == nil {
			return append(intact, left...)
		}
		// The object after those that were read, or the last of them, is missing or damaged.
		good := max(0, read-1)
		intact = append(intact, left[:good]...)
		if good < read && r.eachObject(ctx, left[good:read], discard) == nil {
			intact = append(intact, left[good])
			good++
		}
		left = left[min(len(left), good+1):]
	}
	return intact
}

// discard reads an object without using it.
func discard(_ int, _ string, _ int64, content io.Reader) error {
	_, err := io.Copy(io.Discard, content)
	return err
}

// Refetch fetches refs and everything that they reach from a remote, although this repository
// seems to have it: some of it is damaged here. Git itself refuses to receive an object again
// that it cannot read.
//
// Errors: those of Fetch.
func (r *Repo) Refetch(ctx context.Context, m Remote, refs ...string) error {
	folder, err := os.MkdirTemp(r.own(""), "tmp_refetch_*")
	if err != nil {
		return failIO(err, "create a folder")
	}
	defer os.RemoveAll(folder)
	if _, err := r.git(ctx, gitCall{args: []string{"init", "--quiet", "--bare", "--template="}, gitDir: folder}); err != nil {
		return failGit(err, "create the repository %s", folder)
	}
	if err := r.fetchInto(ctx, m, folder, refs); err != nil {
		return err
	}
	packs := filepath.Join(r.cfg.GitDir, "objects", "pack")
	if err := os.MkdirAll(packs, 0o755); err != nil {
		return failIO(err, "create %s", packs)
	}
	fetched, err := filepath.Glob(filepath.Join(folder, "objects", "pack", "pack-*"))
	if err != nil {
		return failIO(err, "list what was fetched")
	}
	// Git reads the newest pack first. The index comes last: a pack without one does not count.
	for _, last := range []bool{false, true} {
		for _, path := range fetched {
			if strings.HasSuffix(path, ".idx") != last {
				continue
			}
			to := filepath.Join(packs, filepath.Base(path))
			now := time.Now()
			if err := errors.Join(os.Rename(path, to), os.Chtimes(to, now, now)); err != nil {
				return failIO(err, "move %s", path)
			}
		}
	}
	return failIO(errors.Join(durable.SyncFolder(packs), r.removeLooseCopies(ctx)), "keep what was fetched")
}

// fetchInto fetches refs into another repository.
func (r *Repo) fetchInto(ctx context.Context, m Remote, folder string, refs []string) error {
	if _, err := cleanURL(m.URL, r.local); err != nil {
		return err
	}
	options := []string{"-c", "protocol.https.allow=always", "-c", "protocol.http.allow=always", "-c", "http.followRedirects=false",
		"-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60", "-c", "fetch.unpackLimit=1"}
	if r.local {
		options = append(options, "-c", "protocol.file.allow=always")
	}
	args := append(options, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", m.URL)
	for _, ref := range refs {
		if err := checkRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return fail(InvalidReference, err, "%q is not a valid ref name", ref)
		}
		args = append(args, "+"+ref+":"+ref)
	}
	_, err := r.git(ctx, gitCall{args: args, env: m.env(), gitDir: folder})
	if err != nil && ctx.Err() == nil {
		err = failRemote(err, m.URL)
	}
	return err
}

// removeLooseCopies removes the files of objects that are in packs as well, in case they are
// damaged.
func (r *Repo) removeLooseCopies(ctx context.Context) error {
	_, err := r.git(ctx, gitCall{args: []string{"prune-packed", "--quiet"}})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
