package gitstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestPushFetchAndClone(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	first := task.commit("a.txt", "one\n")
	state := task.gitWith("state", "hash-object", "-w", "--stdin")
	tree := task.gitWith("100644 blob "+state+"\tmeta.json\n", "mktree")
	saved := task.git("commit-tree", "-m", "state", tree)
	task.push(first+":"+codeRef("fix", 1), saved+":"+stateRef("fix", 1), first+":refs/heads/clew/fix/before")
	second := task.commit("a.txt", "two\n")
	task.push(second + ":" + codeRef("fix", 2))

	// The next attempt's pod starts empty and fetches.
	next := server.client(taskToken("fix", 2))
	next.git("fetch", "--quiet", next.url, "refs/clew/uid-fix/*:refs/clew/uid-fix/*")
	if got := next.git("rev-parse", codeRef("fix", 2)); got != second {
		t.Errorf("fetched %s, want %s", got, second)
	}
	// A task that was started from it reads it too, and a person with plain git.
	other := server.client(forkToken("other", "fix"))
	other.git("fetch", "--quiet", other.url, codeRef("fix", 1))
	person := server.client(readerToken)
	person.git("clone", "--quiet", "--branch=clew/fix/before", person.url, "cloned")
	if got := person.git("-C", "cloned", "rev-parse", "HEAD"); got != first {
		t.Errorf("cloned %s, want %s", got, first)
	}
	fsck(t, server.bare(repository))
}

func TestRefsThatAPushMayNotWrite(t *testing.T) {
	server := newTestServer(t, Limits{})
	owner := server.client(taskToken("other", 1))
	theirs := owner.commit("theirs", "x")
	owner.push(theirs+":"+codeRef("other", 1), theirs+":refs/heads/clew/other/b")
	task := server.client(taskToken("fix", 1))
	first := task.commit("a.txt", "one\n")
	task.push(first+":"+codeRef("fix", 1), first+":refs/heads/clew/fix/b")
	second := task.commit("a.txt", "two\n")

	for name, test := range map[string]struct {
		refspec string
		reason  gitstoreapi.Reason
		says    string
	}{
		"other task's code":    {":" + codeRef("other", 2), gitstoreapi.RefNotAllowed, "belongs to another task"},
		"other task's state":   {":" + stateRef("other", 1), gitstoreapi.RefNotAllowed, "belongs to another task"},
		"other task's branch":  {":refs/heads/clew/other/c", gitstoreapi.RefNotAllowed, "belongs to another task"},
		"name as prefix":       {":refs/heads/clew/fixed/c", gitstoreapi.RefNotAllowed, "belongs to another task"},
		"main":                 {":refs/heads/main", gitstoreapi.RefNotAllowed, "not a ref that a task may write"},
		"a tag":                {":refs/tags/v1", gitstoreapi.RefNotAllowed, "not a ref that a task may write"},
		"notes":                {":refs/notes/commits", gitstoreapi.RefNotAllowed, "not a ref that a task may write"},
		"number zero":          {":refs/clew/uid-fix/code/0", gitstoreapi.RefNotAllowed, "not the ref of a checkpoint"},
		"leading zero":         {":refs/clew/uid-fix/code/07", gitstoreapi.RefNotAllowed, "not the ref of a checkpoint"},
		"number too large":     {":refs/clew/uid-fix/code/2147483648", gitstoreapi.RefNotAllowed, "not the ref of a checkpoint"},
		"other kind":           {":refs/clew/uid-fix/files/1", gitstoreapi.RefNotAllowed, "not the ref of a checkpoint"},
		"deeper":               {":refs/clew/uid-fix/code/1/2", gitstoreapi.RefNotAllowed, "not the ref of a checkpoint"},
		"immutable":            {"+:" + codeRef("fix", 1), gitstoreapi.RefImmutable, "a checkpoint never changes"},
		"deleted checkpoint":   {"-" + codeRef("fix", 1), gitstoreapi.DeleteNotAllowed, "cannot be deleted"},
		"deleted branch":       {"-refs/heads/clew/fix/b", gitstoreapi.DeleteNotAllowed, "cannot be deleted"},
		"branch like a option": {":refs/heads/clew/fix/-x", gitstoreapi.RefNotAllowed, "begins with"},
		"right-to-left name":   {":refs/heads/clew/fix/a\u202eb", gitstoreapi.RefNotAllowed, "control character"},
		"not UTF-8":            {":refs/heads/clew/fix/a\xffb", gitstoreapi.RefNotAllowed, "not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			refspec := second + test.refspec
			if force, ok := strings.CutPrefix(test.refspec, "+"); ok {
				refspec = "+" + second + force
			}
			if deleted, ok := strings.CutPrefix(test.refspec, "-"); ok {
				refspec = ":" + deleted
			}
			// One bad ref refuses the good one beside it.
			task.refusedPush(test.reason, test.says, refspec, second+":"+codeRef("fix", 9))
			if got := server.remoteRef(codeRef("fix", 9)); got != "" {
				t.Errorf("the good ref beside the bad one was stored: %s", got)
			}
		})
	}
	if got := server.remoteRef(codeRef("fix", 1)); got != first {
		t.Errorf("the checkpoint's ref is %s, want %s", got, first)
	}
	// Pushing the same value again changes nothing; a task may move its own branch.
	task.push(first + ":" + codeRef("fix", 1))
	task.push("+" + second + ":refs/heads/clew/fix/b")
	task.push("+" + first + ":refs/heads/clew/fix/b")
}

func TestWhoMayDoWhat(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	first := task.commit("a.txt", "one\n")
	refspec := first + ":" + codeRef("fix", 1)
	task.as("nonsense").refusedPush(gitstoreapi.Unauthenticated, "", refspec)
	task.as("gone").refusedPush(gitstoreapi.PodGone, "", refspec)
	task.as("task:elsewhere:fix:uid-fix:1").refusedPush(gitstoreapi.Forbidden, "does not give access to the repositories of the namespace team", refspec)
	task.as("task:team:..:uid-fix:1").refusedPush(gitstoreapi.Forbidden, "does not give access", refspec)
	task.as("task:team:fix:../x:1").refusedPush(gitstoreapi.Forbidden, "does not give access", refspec)
	task.as("reader:elsewhere").refusedPush(gitstoreapi.Forbidden, "does not give access", refspec)
	task.as(readerToken).refusedPush(gitstoreapi.Forbidden, "only the pod of a task may push", refspec)
	task.as("down").refusedPush(gitstoreapi.Unavailable, "cannot be checked", refspec)
	_, stderr, err := task.as(readerToken).try("fetch", task.url)
	if err == nil {
		t.Error("a reader's fetch from a missing repository succeeded")
	}
	checkRefused(t, "a reader's fetch from a missing repository", stderr, gitstoreapi.NotFound)
	// Password authentication, which is what git itself uses.
	withPassword := *task
	withPassword.env = append(withPassword.env, "GIT_CONFIG_COUNT=0")
	withPassword.url = strings.Replace(task.url, "https://", "https://clew:"+strings.ReplaceAll(taskToken("fix", 1), ":", "%3A")+"@", 1)
	withPassword.push(refspec)
}

// The pod that publishes reads what its task has stored, and nothing else.
func TestAPodThatPublishesOnlyReads(t *testing.T) {
	server := newTestServer(t, Limits{})
	task, other := server.client(taskToken("fix", 2)), server.client(taskToken("other", 1))
	first := task.commit("a.txt", "one\n")
	publisher := task.as(taskToken("fix", 0))
	_, stderr, err := publisher.try("fetch", task.url, codeRef("fix", 1))
	if err == nil {
		t.Error("it made the repository")
	}
	checkRefused(t, "a fetch before the first push", stderr, gitstoreapi.NotFound)
	task.push(first + ":" + codeRef("fix", 1))
	theirs := other.commit("b.txt", "theirs\n")
	other.push(theirs + ":" + codeRef("other", 1))
	if _, stderr, err := publisher.try("fetch", task.url, codeRef("fix", 1)); err != nil {
		t.Errorf("it cannot fetch its task's checkpoint: %s", stderr)
	}
	if _, _, err := publisher.try("fetch", task.url, codeRef("other", 1)); err == nil {
		t.Error("it fetched another task's checkpoint")
	}
	publisher.refusedPush(gitstoreapi.Forbidden, "only the pod of a task may push", first+":"+codeRef("fix", 2))
	task.push(first + ":" + codeRef("fix", 2)) // it is no newer attempt
}

func TestForkCopiesNothing(t *testing.T) {
	server := newTestServer(t, Limits{})
	source := server.client(taskToken("source", 1))
	var files []string
	for i := range 300 {
		files = append(files, fmt.Sprintf("dir%d/file%d", i%17, i), noise(20_000))
	}
	first := source.commit(files...)
	state := source.git("commit-tree", "-m", "state", source.git("rev-parse", first+"^{tree}"))
	source.push(first+":"+codeRef("source", 1), state+":"+stateRef("source", 1))
	before, err := diskUse(server.bare(repository))
	if err != nil {
		t.Fatal(err)
	}

	fork := server.client(forkToken("fork", "source"))
	fork.git("fetch", "--quiet", fork.url, codeRef("source", 1)+":"+codeRef("fork", 1), stateRef("source", 1)+":"+stateRef("fork", 1))
	fork.push(first+":"+codeRef("fork", 1), state+":"+stateRef("fork", 1))
	fork.git("checkout", "--quiet", "-b", "work", first)
	fork.push(fork.commit("new", "one more line\n")+":"+codeRef("fork", 2), state+":"+stateRef("fork", 2))
	after, err := diskUse(server.bare(repository))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("disk use before %d, after %d: %d more", before, after, after-before)
	if grown := after - before; grown >= 64<<10 {
		t.Errorf("the fork added %d bytes to %d", grown, before)
	}
	fsck(t, server.bare(repository))
}

// After its first checkpoint a fork is advertised only its own checkpoints, so that its
// pushes do not grow with those of its source.
func TestPusherIsAdvertisedItsOwnCheckpoints(t *testing.T) {
	server := newTestServer(t, Limits{})
	other := server.client(taskToken("other", 1))
	theirs := other.commit("theirs", "x")
	other.push(theirs+":"+codeRef("other", 1), theirs+":refs/heads/clew/other/kept")
	task := server.client(forkToken("fix", "other"))
	advertised := func() string {
		t.Helper()
		task.env = append(task.env, "GIT_TRACE_PACKET=1")
		_, stderr, err := task.try("push", task.url, "HEAD:refs/heads/clew/fix/same")
		if err != nil {
			t.Fatal(stderr)
		}
		return stderr
	}
	first := task.commit("a", "one")
	task.push(first + ":refs/heads/clew/fix/same")
	if !strings.Contains(advertised(), codeRef("other", 1)) {
		t.Error("a fork without checkpoints is not advertised its source's")
	}
	task.push(first+":"+codeRef("fix", 1), first+":"+stateRef("fix", 1))
	now := advertised()
	for ref, want := range map[string]bool{codeRef("fix", 1): true, codeRef("other", 1): false, "refs/heads/clew/other/kept": false} {
		if strings.Contains(now, ref) != want {
			t.Errorf("a task with checkpoints is advertised %s: %t, want %t\n%s", ref, !want, want, now)
		}
	}
	// It still cannot write the refs that it is not advertised.
	task.refusedPush(gitstoreapi.RefNotAllowed, "belongs to another task", first+":"+codeRef("other", 2))
	second := task.commit("a", "two")
	task.push(second+":"+codeRef("fix", 2), second+":"+stateRef("fix", 2))
}

func TestManyTasksPushAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	const tasks, checkpoints = 8, 5
	server := newTestServer(t, Limits{})
	var wait sync.WaitGroup
	heads := make([]string, tasks)
	for i := range tasks {
		name := fmt.Sprintf("task%d", i)
		client := server.client(taskToken(name, 1))
		wait.Go(func() {
			for number := 1; number <= checkpoints; number++ {
				stdout, stderr, err := client.try("commit", "--quiet", "--allow-empty", fmt.Sprintf("--message=%s %d", name, number))
				if err == nil {
					stdout, stderr, err = client.try("push", "--quiet", "--atomic", client.url,
						"HEAD:"+codeRef(name, number), "HEAD:"+stateRef(name, number), "+HEAD:refs/heads/clew/"+name+"/latest")
				}
				if err != nil {
					t.Errorf("%s %d: %v\n%s%s", name, number, err, stdout, stderr)
					return
				}
			}
			heads[i], _, _ = client.try("rev-parse", "HEAD")
		})
	}
	wait.Wait()
	for i, head := range heads {
		if got := server.remoteRef(codeRef(fmt.Sprintf("task%d", i), checkpoints)); got != head || head == "" {
			t.Errorf("task%d: %q, want %q", i, got, head)
		}
	}
	fsck(t, server.bare(repository))
}
