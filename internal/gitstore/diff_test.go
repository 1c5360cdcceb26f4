package gitstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// askDiff asks as Clew's server for the difference between points of the task fix.
func (s *testServer) askDiff(parameters ...string) (int, string) {
	s.t.Helper()
	query := url.Values{}
	for i := 0; i+1 < len(parameters); i += 2 {
		query.Add(parameters[i], parameters[i+1])
	}
	return s.ask(http.MethodGet, "/team/tasks/uid-fix/diff?"+query.Encode(), serverToken)
}

// diff returns a difference, and fails the test if it is refused.
func (s *testServer) diff(from, to string, parameters ...string) gitstoreapi.Diff {
	s.t.Helper()
	code, body := s.askDiff(append([]string{"from", from, "to", to}, parameters...)...)
	var d gitstoreapi.Diff
	if err := json.Unmarshal([]byte(body), &d); code != http.StatusOK || err != nil {
		s.t.Fatalf("the difference between %s and %s: code %d, %s", from, to, code, body)
	}
	return d
}

// refusedDiff fails the test unless the difference is refused for the reason.
func (s *testServer) refusedDiff(reason gitstoreapi.Reason, parameters ...string) {
	s.t.Helper()
	_, body := s.askDiff(parameters...)
	checkRefused(s.t, fmt.Sprintf("diff %q", parameters), body, reason)
}

// checkpoints commits as the daemon does, so that a base is told from a checkpoint.
func (c *client) checkpoints() *client {
	other := *c
	other.env = append(slices.Clone(c.env), "GIT_COMMITTER_EMAIL="+checkpointCommitter)
	return &other
}

// differing returns a server whose task fix has two checkpoints that differ in every way, on
// top of a commit of the origin, and the client.
func differing(t *testing.T) (*testServer, *client) {
	t.Helper()
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	long := strings.Repeat("a line\n", 40)
	fix.commit("README", "origin\n")
	daemon := fix.checkpoints()
	daemon.commit("binary", "\x00\x01", "changed", "a\nb\nc\n", "deleted", "x\n", "dir/below", "b\n", "moved", long, "script", "s\n", "type", "t\n", "[id].ts", "1\n")
	daemon.push("HEAD:" + codeRef("fix", 1))
	daemon.git("mv", "moved", "moved away")
	daemon.git("rm", "--quiet", "deleted", "dir/below", "type")
	if err := errorsOf(os.Symlink("README", filepath.Join(fix.dir, "type")), os.Chmod(filepath.Join(fix.dir, "script"), 0o755)); err != nil {
		t.Fatal(err)
	}
	daemon.commit("binary", "\x00\x02", "changed", "a\nB\nc\n", "dir", "a file now\n", "moved away", long+"end\n", "né\xffw", "n", "[id].ts", "2\n")
	daemon.push("HEAD:" + codeRef("fix", 2))
	return server, daemon
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestADifferenceListsEveryKindOfChange(t *testing.T) {
	server, _ := differing(t)
	got := server.diff("checkpoint/1", "checkpoint/2")
	const file, link, program = "100644", "120000", "100755"
	want := gitstoreapi.Diff{
		Listing: gitstoreapi.ListingCompared,
		Totals:  gitstoreapi.DiffTotals{Files: 10, LinesAdded: 6, LinesRemoved: 5, BinaryFiles: 1},
		Files: []gitstoreapi.DiffFile{
			{Path: "[id].ts", Action: gitstoreapi.DiffModified, OldMode: file, NewMode: file, OldBytes: 2, NewBytes: 2, LinesAdded: 1, LinesRemoved: 1},
			{Path: "binary", Action: gitstoreapi.DiffModified, OldMode: file, NewMode: file, OldBytes: 2, NewBytes: 2, Binary: true},
			{Path: "changed", Action: gitstoreapi.DiffModified, OldMode: file, NewMode: file, OldBytes: 6, NewBytes: 6, LinesAdded: 1, LinesRemoved: 1},
			{Path: "deleted", Action: gitstoreapi.DiffDeleted, OldMode: file, OldBytes: 2, LinesRemoved: 1},
			{Path: "dir", Action: gitstoreapi.DiffAdded, NewMode: file, NewBytes: 11, LinesAdded: 1},
			{Path: "dir/below", Action: gitstoreapi.DiffDeleted, OldMode: file, OldBytes: 2, LinesRemoved: 1},
			{Path: "moved away", OldPath: "moved", Action: gitstoreapi.DiffRenamed, OldMode: file, NewMode: file, OldBytes: 280, NewBytes: 284, LinesAdded: 1},
			{Path: `"n\303\251\377w"`, Action: gitstoreapi.DiffAdded, NewMode: file, NewBytes: 1, LinesAdded: 1},
			{Path: "script", Action: gitstoreapi.DiffModified, OldMode: file, NewMode: program, OldBytes: 2, NewBytes: 2},
			{Path: "type", Action: gitstoreapi.DiffModified, OldMode: file, NewMode: link, OldBytes: 2, NewBytes: 6, LinesAdded: 1, LinesRemoved: 1},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(gitstoreapi.Diff{}, "FromCommit", "ToCommit")); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
}

func TestPatchesLeadFromOneCheckpointToTheOther(t *testing.T) {
	server, fix := differing(t)
	for _, limit := range []string{"300", "1", "3"} {
		for _, way := range [][2]int{{1, 2}, {2, 1}} {
			from, to := fmt.Sprintf("checkpoint/%d", way[0]), fmt.Sprintf("checkpoint/%d", way[1])
			var patch bytes.Buffer
			for after := 0; ; {
				page := server.diff(from, to, "format", "patch", "limit", limit, "after", fmt.Sprint(after))
				for _, f := range page.Files {
					patch.Write(f.Patch)
				}
				if after = page.Next; after == 0 {
					break
				}
			}
			fix.git("checkout", "--quiet", "--force", server.remoteRef(codeRef("fix", way[0])))
			fix.git("clean", "--quiet", "--force", "-dx")
			fix.gitWith(patch.String(), "apply", "--index")
			if got, want := fix.git("write-tree"), fix.git("rev-parse", server.remoteRef(codeRef("fix", way[1]))+"^{tree}"); got != want {
				t.Errorf("the patch from %s to %s, %s files a page, leads to the tree %s, want %s\n%s", from, to, limit, got, want, patch.String())
			}
		}
	}
}

func TestHunksOfADifference(t *testing.T) {
	server, _ := differing(t)
	got := server.diff("checkpoint/1", "checkpoint/2", "format", "hunks", "path", "changed")
	want := []gitstoreapi.DiffHunk{{OldStart: 1, OldLines: 3, NewStart: 1, NewLines: 3, Lines: []string{" a", "-b", "+B", " c"}}}
	if len(got.Files) != 1 || !cmp.Equal(want, got.Files[0].Hunks) || got.Totals.Files != 1 {
		t.Errorf("the difference of one file is %+v, want the hunks %+v", got, want)
	}
}

func TestPathsOfADifference(t *testing.T) {
	server, _ := differing(t)
	for pattern, want := range map[string][]string{
		"dir":       {"dir", "dir/below"},
		"moved":     {"moved"},
		"moved*":    {"moved away"},
		"[id].ts":   {"[id].ts"},
		"**/b*":     {"binary", "dir/below"},
		"*ed":       {"changed", "deleted", "moved"},
		"unchanged": nil,
	} {
		var got []string
		for _, f := range server.diff("checkpoint/1", "checkpoint/2", "path", pattern).Files {
			got = append(got, f.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the path %q selects %q, want %q", pattern, got, want)
		}
	}
	server.refusedDiff(gitstoreapi.BadRequest, "from", "checkpoint/1", "to", "checkpoint/2", "path", "../other")
}

func TestPointsOfADifference(t *testing.T) {
	server, fix := differing(t)
	fork := server.client(forkToken("fork", "fix")).checkpoints()
	fork.git("fetch", "--quiet", fork.url, codeRef("fix", 1))
	fork.git("checkout", "--quiet", "FETCH_HEAD")
	fork.commit("changed", "fork\n")
	fork.push("HEAD:" + codeRef("fork", 1))
	other := server.client(taskToken("other", 1))
	foreign := other.commit("secret", "of another task\n")
	other.push("HEAD:" + codeRef("other", 1))
	origin := fix.git("rev-list", "--max-parents=0", "HEAD")
	for _, c := range []struct {
		from, to string
		files    int64
	}{
		{"base", "checkpoint/1", 8},
		{"commit/" + origin, "base", 0},
		{"checkpoint/1", "uid-fork:checkpoint/1", 1},
		{"base", "uid-fork:base", 0},
	} {
		if got := server.diff(c.from, c.to); got.Totals.Files != c.files {
			t.Errorf("between %s and %s %d files differ, want %d", c.from, c.to, got.Totals.Files, c.files)
		}
	}
	// An origin may well have commits that look like checkpoints.
	first := server.remoteRef(codeRef("fix", 1))
	if got := server.diff("base", "checkpoint/2", "base", first); got.FromCommit != first || got.Totals.Files != 10 {
		t.Errorf("from the base %s, which is known, the difference is from %s: %+v", first, got.FromCommit, got.Totals)
	}
	server.refusedDiff(gitstoreapi.NotFound, "from", "base", "to", "checkpoint/2", "base", foreign)
	for point, reason := range map[string]gitstoreapi.Reason{
		"checkpoint/3": gitstoreapi.NotFound, "checkpoint/0": gitstoreapi.BadRequest, "": gitstoreapi.BadRequest,
		"HEAD": gitstoreapi.BadRequest, "live": gitstoreapi.NotFound, "uid-fork:live": gitstoreapi.NotFound, "checkpoint/--help": gitstoreapi.BadRequest, "commit/main": gitstoreapi.BadRequest,
		"commit/" + foreign: gitstoreapi.NotFound, "commit/" + strings.Repeat("0", 40): gitstoreapi.NotFound,
		"commit/" + fix.git("rev-parse", "HEAD^{tree}"): gitstoreapi.NotFound,
		"uid-none:checkpoint/1":                         gitstoreapi.NotFound, "../x:base": gitstoreapi.BadRequest,
	} {
		server.refusedDiff(reason, "from", "checkpoint/1", "to", point)
	}

	// The present files are what was pushed last, whatever they were before.
	for content, files := range map[string]int64{"now\n": 1, "origin\n": 0} {
		fix.git("checkout", "--quiet", first)
		now := first
		if files > 0 {
			now = fix.commit("changed", content)
		}
		fix.push("+" + now + ":refs/clew/uid-fix/live")
		if got := server.diff("checkpoint/1", "live"); got.ToCommit != now || got.Totals.Files != files {
			t.Errorf("to the present files, which are %s, the difference is to %s with %d files, want %d", now, got.ToCommit, got.Totals.Files, files)
		}
	}
}

func TestIgnoredFilesAreLeftOutAndCounted(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	fix.git("config", "core.excludesFile", "/dev/null")
	fix.commit("README", "r\n", "tracked.log", "1\n")
	fix.commit(".gitignore", "node_modules/\n*.log\n", "sub/.gitignore", "!keep.log\n")
	daemon := fix.checkpoints()
	force := func(files ...string) {
		for i := 0; i+1 < len(files); i += 2 {
			path := filepath.Join(fix.dir, files[i])
			if err := errorsOf(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(files[i+1]), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		daemon.git("add", "--all", "--force")
		daemon.git("commit", "--quiet", "--message=work")
	}
	force("node_modules/a/index.js", "1\n", "gone.log", "moved\n", "old.log", "1\n")
	daemon.push("HEAD:" + codeRef("fix", 1))
	daemon.git("rm", "--quiet", "gone.log")
	force("node_modules/a/index.js", "2\n", "node_modules/b/.gitignore", "!*\n", "old.log", "2\n", "tracked.log", "2\n", "sub/keep.log", "keep\n", "sub/other.log", "other\n", "new.go", "moved\n")
	daemon.push("HEAD:" + codeRef("fix", 2))

	paths := func(d gitstoreapi.Diff) (found []string) {
		for _, f := range d.Files {
			found = append(found, f.Path)
		}
		return found
	}
	got := server.diff("checkpoint/1", "checkpoint/2", "format", "patch")
	if diff := cmp.Diff([]string{"new.go", "sub/keep.log", "tracked.log"}, paths(got)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if want := (gitstoreapi.DiffTotals{Files: 3, LinesAdded: 3, LinesRemoved: 1, IgnoredFiles: 5}); got.Totals != want {
		t.Errorf("totals are %+v, want %+v", got.Totals, want)
	}
	if all := server.diff("checkpoint/1", "checkpoint/2", "ignored", "true"); all.Totals.Files != 7 || all.Totals.IgnoredFiles != 0 { // one of them was renamed
		t.Errorf("with ignored files the totals are %+v", all.Totals)
	}
	if some := server.diff("checkpoint/1", "checkpoint/2", "path", "sub"); some.Totals.Files != 1 || some.Totals.IgnoredFiles != 1 {
		t.Errorf("of one folder the totals are %+v", some.Totals)
	}
	server.refusedDiff(gitstoreapi.BadRequest, "from", "checkpoint/1", "to", "checkpoint/2", "ignored", "perhaps")
}

// Whoever reviews an agent's work must see each file that git tracks, whatever the agent wrote.
func TestNoRuleHidesWhatGitTracks(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	module := fix.commit("src/auth.go", "1\n")
	fix.git("update-index", "--add", "--cacheinfo", "160000,"+module+",vendor/lib")
	fix.git("commit", "--quiet", "--message=with a nested repository")
	moved := fix.git("rev-parse", "HEAD")
	daemon := fix.checkpoints()
	daemon.git("commit", "--quiet", "--allow-empty", "--message=first")
	daemon.push("HEAD:" + codeRef("fix", 1))
	for rule, want := range map[string][]string{
		"*\n":            {"src/auth.go", "vendor/lib"},
		"[[:bad:]]\n*\n": {".gitignore", "new", "src/auth.go", "vendor/lib"},
	} {
		if err := errorsOf(os.WriteFile(filepath.Join(fix.dir, ".gitignore"), []byte(rule), 0o600), os.WriteFile(filepath.Join(fix.dir, "new"), []byte("1\n"), 0o600),
			os.WriteFile(filepath.Join(fix.dir, "src/auth.go"), []byte("backdoor\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		daemon.git("add", "--force", ".gitignore", "new", "src/auth.go")
		daemon.git("update-index", "--cacheinfo", "160000,"+moved+",vendor/lib")
		daemon.git("commit", "--quiet", "--message=second")
		n := 2
		if len(want) > 2 {
			n = 3
		}
		daemon.push("HEAD:" + codeRef("fix", n))
		daemon.git("reset", "--quiet", "--hard", "HEAD~1")
		var got []string
		for _, f := range server.diff("checkpoint/1", fmt.Sprintf("checkpoint/%d", n)).Files {
			got = append(got, f.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("with the rule %q the files are %q, want %q", rule, got, want)
		}
	}
}

func TestATaskWithoutOriginStartsFromNothing(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1)).checkpoints()
	fix.commit("a", "1\n", "b", "2\n")
	fix.push("HEAD:" + codeRef("fix", 1))
	if got := server.diff("base", "checkpoint/1"); got.Totals.Files != 2 || got.Totals.LinesAdded != 2 {
		t.Errorf("the difference from an empty repository is %+v", got.Totals)
	}
}

func TestPagesAreOfTheSameCommitsAndListing(t *testing.T) {
	server, fix := differing(t)
	first := server.diff("checkpoint/1", "checkpoint/2", "limit", "1")
	if first.Listing != gitstoreapi.ListingCompared {
		t.Errorf("the listing is %q", first.Listing)
	}
	same := []string{"from", "checkpoint/1", "to", "checkpoint/2", "after", "1", "fromCommit", first.FromCommit}
	if code, body := server.askDiff(append(same, "toCommit", first.ToCommit, "listing", string(first.Listing))...); code != http.StatusOK {
		t.Errorf("the second page: code %d, %s", code, body)
	}
	code, body := server.askDiff(append(same, "toCommit", fix.git("rev-parse", "HEAD~1"))...)
	checkRefused(t, "a page of another commit", body, gitstoreapi.Moved)
	if code != http.StatusGone {
		t.Errorf("a page of another commit is answered with %d", code)
	}
	if names := server.diff("checkpoint/1", "checkpoint/2", "listing", "Names"); names.Listing != gitstoreapi.ListingNames || names.Totals.UncountedFiles != 11 {
		t.Errorf("without comparing, the listing is %q of %+v", names.Listing, names.Totals)
	}
}

// A pod may push to any repository of its namespace; checkpoints are restored from one.
func TestATaskInSeveralRepositoriesIsNotCompared(t *testing.T) {
	server, fix := differing(t)
	decoy := newClient(t, server.url("team", "r-0"), server.ca, taskToken("fix", 1)).checkpoints()
	decoy.commit("a", "harmless\n")
	decoy.push("HEAD:" + codeRef("fix", 1))
	server.refusedDiff(gitstoreapi.Ambiguous, "from", "checkpoint/1", "to", "checkpoint/2")
	_ = fix
}

// Among many files git looks only for files that were renamed without a change, and among the
// files of one page for all.
func TestManyRenamedFilesMakePages(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	server, fix := differing(t)
	var before []string
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("line of file %d\n", i), 30) }
	for i := range 500 {
		before = append(before, fmt.Sprintf("old/%03d", i), text(i))
	}
	fix.commit(before...)
	fix.push("HEAD:" + codeRef("fix", 3))
	fix.git("rm", "-r", "--quiet", "old")
	var after []string
	for i := range 500 {
		after = append(after, fmt.Sprintf("new/%03d", i), text(i)+"changed\n")
	}
	fix.commit(after...)
	fix.push("HEAD:" + codeRef("fix", 4))
	var patch bytes.Buffer
	for next := 0; ; {
		page := server.diff("checkpoint/3", "checkpoint/4", "format", "patch", "after", fmt.Sprint(next))
		for _, f := range page.Files {
			patch.Write(f.Patch)
		}
		if next = page.Next; next == 0 {
			break
		}
	}
	fix.git("checkout", "--quiet", "--force", "HEAD~1")
	fix.gitWith(patch.String(), "apply", "--index")
	if got, want := fix.git("write-tree"), fix.git("rev-parse", server.remoteRef(codeRef("fix", 4))+"^{tree}"); got != want {
		t.Errorf("the patch leads to the tree %s, want %s", got, want)
	}
}

func TestOnlyTheServerMayCompare(t *testing.T) {
	server, _ := differing(t)
	for token, reason := range map[string]gitstoreapi.Reason{
		"": gitstoreapi.Unauthenticated, "nonsense": gitstoreapi.Unauthenticated, "down": gitstoreapi.Unavailable,
		readerToken: gitstoreapi.Forbidden, taskToken("fix", 1): gitstoreapi.Forbidden,
	} {
		_, body := server.ask(http.MethodGet, "/team/tasks/uid-fix/diff?from=checkpoint/1&to=checkpoint/2", token)
		checkRefused(t, "a diff by "+token, body, reason)
	}
	_, body := server.ask(http.MethodGet, "/strangers/tasks/uid-fix/diff?from=checkpoint/1&to=checkpoint/2", serverToken)
	checkRefused(t, "a diff in another namespace", body, gitstoreapi.NotFound)
	_, body = server.ask(http.MethodPost, "/team/tasks/uid-fix/diff?from=checkpoint/1&to=checkpoint/2", serverToken)
	checkRefused(t, "a POST", body, gitstoreapi.BadRequest)
}

func TestLargeContentIsLeftOutAndMeasured(t *testing.T) {
	server, fix := differing(t)
	fix.commit("long", strings.Repeat("many lines\n", 200_000), "large", strings.Repeat("x", maxContentBytes+1), "small", "s\n")
	fix.push("HEAD:" + codeRef("fix", 3))
	cut := map[string]int64{}
	for _, f := range server.diff("checkpoint/2", "checkpoint/3", "format", "patch").Files {
		cut[f.Path] = f.Cut
		if f.Cut == 0 == (len(f.Patch) == 0) {
			t.Errorf("%s has a patch of %d bytes, and %d left out", f.Path, len(f.Patch), f.Cut)
		}
	}
	if cut["large"] != maxContentBytes+1 || cut["long"] < maxPatchBytes || cut["small"] != 0 {
		t.Errorf("content left out: %v", cut)
	}
}

func TestAPageEndsWhenItIsFull(t *testing.T) {
	server, fix := differing(t)
	var files []string
	for i := range 12 {
		files = append(files, fmt.Sprintf("large/%02d", i), strings.Repeat(fmt.Sprintf("line %d\n", i), 100_000))
	}
	fix.commit(files...)
	fix.push("HEAD:" + codeRef("fix", 3))
	pages, seen := 0, 0
	for after := 0; ; pages++ {
		page := server.diff("checkpoint/2", "checkpoint/3", "format", "patch", "after", fmt.Sprint(after))
		size := 0
		for i, f := range page.Files {
			if want := fmt.Sprintf("large/%02d", seen+i); f.Path != want || len(f.Patch) == 0 {
				t.Fatalf("file %d is %s with a patch of %d bytes, want %s", seen+i, f.Path, len(f.Patch), want)
			}
			size += len(f.Patch)
		}
		if size > maxPageBytes {
			t.Errorf("a page has patches of %d bytes", size)
		}
		seen += len(page.Files)
		if after = page.Next; after == 0 {
			break
		}
	}
	if seen != 12 || pages < 1 {
		t.Errorf("%d files on %d pages", seen, pages+1)
	}
}

func TestVeryManyFilesAreListedWithoutTheirLines(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	server, fix := differing(t)
	var files []string
	for i := range maxComparedFiles + 10 {
		files = append(files, fmt.Sprintf("many/%05d", i), "1\n")
	}
	fix.commit(files...)
	fix.push("HEAD:" + codeRef("fix", 3))
	fix.commit(append(files[:len(files):len(files)], ".gitignore", "/many/\n", "few", "1\n")...)
	fix.push("HEAD:" + codeRef("fix", 4))
	page := server.diff("checkpoint/2", "checkpoint/3", "after", fmt.Sprint(maxComparedFiles), "format", "patch")
	want := gitstoreapi.DiffTotals{Files: maxComparedFiles + 10, UncountedFiles: maxComparedFiles + 10}
	if page.Totals != want || len(page.Files) != 10 || page.Next != 0 || page.Files[9].Path != "many/10009" || len(page.Files[9].Patch) == 0 {
		t.Errorf("the last page is %+v", page)
	}
	few := server.diff("checkpoint/2", "checkpoint/4")
	if want := (gitstoreapi.DiffTotals{Files: 2, LinesAdded: 2, IgnoredFiles: maxComparedFiles + 10}); few.Totals != want {
		t.Errorf("beside very many ignored files the totals are %+v, want %+v", few.Totals, want)
	}
	if first := server.diff("checkpoint/2", "checkpoint/3", "limit", "5"); len(first.Files) != 5 || first.Next != 5 {
		t.Errorf("the first page has %d files, and the next begins after %d", len(first.Files), first.Next)
	}
}

func TestDamagedObjectsAreReported(t *testing.T) {
	for what, damage := range map[string]func(object string) error{
		"truncated": func(object string) error { return errorsOf(os.Chmod(object, 0o644), os.Truncate(object, 5)) },
		"missing":   os.Remove,
	} {
		server, fix := differing(t)
		blob := fix.git("rev-parse", server.remoteRef(codeRef("fix", 2))+":changed")
		unpackAll(t, server.bare(repository))
		if err := damage(filepath.Join(server.bare(repository), "objects", blob[:2], blob[2:])); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"patch", ""} {
			_, body := server.askDiff("from", "checkpoint/1", "to", "checkpoint/2", "format", format)
			checkRefused(t, "a difference with a "+what+" object", body, gitstoreapi.Damaged)
		}
	}
}

// unpackAll makes all objects of a repository loose, so that one alone can be damaged.
func unpackAll(t *testing.T, bare string) {
	t.Helper()
	for _, pack := range mustGlob(t, filepath.Join(bare, "objects", "pack", "*.pack")) {
		content, err := os.ReadFile(pack)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range mustGlob(t, strings.TrimSuffix(pack, ".pack")+".*") {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		unpack := exec.Command("git", "--git-dir="+bare, "unpack-objects", "-q")
		unpack.Stdin, unpack.Env = bytes.NewReader(content), gitTestEnvironment()
		if out, err := unpack.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
