package gitstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// begin makes room for the task "fix" with a UID, in the namespace that was made anew.
func (o *old) begin(ctx context.Context, uid string) error {
	f, err := o.store.fences("team")
	if err != nil {
		return err
	}
	return o.store.makeRoom(ctx, f, Task{Namespace: "team", NamespaceUID: uidAnew, Name: "fix", UID: uid, Attempt: 1})
}

// TestEachBranchIsMovedOnce: to a place of the namespace, however many tasks have had the name; it
// goes with the last of them.
func TestEachBranchIsMovedOnce(t *testing.T) {
	o := newOld(t)
	for _, uid := range []string{"uid-old2", "uid-old3"} {
		o.before.refsOf("task:team:fix:" + uid + ":1")
	}
	o.refsOf("task:team:fix:uid-new:1")
	place := refname.Displaced(uidOfTeam, "fix")
	want := place + "uid-new/kept " + place + "uid-new/kept-too"
	for _, uid := range []string{"uid-old", "uid-old3", "uid-old2"} {
		if got := strings.Join(strings.Fields(o.gitOut("for-each-ref", "--format=%(refname)", refname.AllDisplaced, branchRefs)), " "); got != want {
			t.Fatalf("before %s is deleted, the branches are %s, want %s", uid, got, want)
		}
		if got := o.before.refsOf(readerToken); !strings.Contains(got, want) {
			t.Errorf("before %s is deleted, the old namespace sees %s", uid, got)
		}
		if code, body := o.deleteTask(serverToken, uid, "fix"); code != http.StatusOK {
			t.Fatalf("code %d, %s", code, body)
		}
	}
	if got := o.gitOut("for-each-ref"); got != "" {
		t.Errorf("the gitstore still has %s", got)
	}
}

// TestMovingBranchesGoesOnWhereItWasInterrupted: what was moved stays moved, and only the
// requests of that task wait.
func TestMovingBranchesGoesOnWhereItWasInterrupted(t *testing.T) {
	g := gomega.NewWithT(t)
	o := newOld(t)
	const count = 2*roomBatch + 50
	var commands strings.Builder
	for n := range count {
		fmt.Fprintf(&commands, "create refs/heads/clew/fix/b%03d %s\n", n, o.commit)
	}
	_, err := git{binary: "git"}.runWith(t.Context(), nil, strings.NewReader(commands.String()), o.bare(repository), "--git-dir=.", "update-ref", "--stdin")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	// The second batch waits for the lock of one of its refs, until the request is given up.
	lock := filepath.Join(o.bare(repository), fmt.Sprintf("refs/heads/clew/fix/b%03d.lock", roomBatch+50))
	g.Expect(os.WriteFile(lock, nil, 0o600)).To(gomega.Succeed())
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- o.begin(ctx, "uid-new") }()
	left := func() []string {
		return strings.Fields(o.gitOut("for-each-ref", "--format=%(refname)", "refs/heads/clew/fix/"))
	}
	g.Eventually(left).WithTimeout(time.Minute).Should(gomega.HaveLen(count + 2 - roomBatch))
	other := o.client("task:team:other:uid-other:1")
	other.commit("a", "words")
	other.push("HEAD:refs/clew/uid-other/code/1", "HEAD:refs/heads/clew/other/mine")
	cancel()
	g.Expect(<-result).To(gomega.MatchError(errMakingRoom))
	g.Expect(left()).To(gomega.HaveLen(count + 2 - roomBatch))

	g.Expect(os.Remove(lock)).To(gomega.Succeed())
	g.Expect(o.begin(t.Context(), "uid-new")).To(gomega.Succeed())
	g.Expect(left()).To(gomega.BeEmpty())
	aside := strings.Fields(o.gitOut("for-each-ref", "--format=%(objectname)", refname.Displaced(uidOfTeam, "fix")+"uid-new/"))
	g.Expect(aside).To(gomega.HaveLen(count + 2))
	g.Expect(aside).To(gomega.HaveEach(o.commit))
}

// TestAPushOfTheOldNamespaceDoesNotLandInTheNewOnes: also one that began before the branches of its
// task were moved.
func TestAPushOfTheOldNamespaceDoesNotLandInTheNewOnes(t *testing.T) {
	o := newOld(t)
	late := o.before.client("task:team:fix:uid-old:1")
	late.commit("a", "late")
	o.before.handler.beforeGit = func() {
		if err := o.begin(t.Context(), "uid-new"); err != nil {
			t.Error(err)
		}
	}
	late.refusedPush(gitstoreapi.Unavailable, "have made room", "HEAD:refs/heads/clew/fix/late")
	if got := o.gitOut("for-each-ref", branchRefs); got != "" {
		t.Errorf("the new namespace's task has the branches %s", got)
	}
}

// TestATaskThatLivesAgainHasItsBranchesBack: the cluster's state was restored to that of before the
// namespace was made anew, and after that again to the later one.
func TestATaskThatLivesAgainHasItsBranchesBack(t *testing.T) {
	o := newOld(t)
	task := o.client("task:team:fix:uid-new:1")
	own := task.commit("own", "words")
	// kept is a folder here, and was a branch there.
	task.push(own+":refs/clew/uid-new/code/1", own+":refs/heads/clew/fix/kept/deeper", own+":refs/heads/clew/fix/kept-too")
	reader := o.before.client("task:team:fix:uid-old:0")
	if got := reader.git("ls-remote", reader.url); !strings.Contains(got, o.refs[0]) || strings.Contains(got, branchRefs) {
		t.Errorf("a pod of the old task that only reads sees the new one's branches:\n%s", got)
	}
	views := map[string]struct {
		server *testServer
		want   string
	}{
		"uid-old": {o.before, strings.Join(o.refs, " ")},
		"uid-new": {o.testServer, "refs/clew/uid-new/code/1 refs/heads/clew/fix/kept-too refs/heads/clew/fix/kept/deeper"},
	}
	for n, uid := range []string{"uid-old", "uid-new", "uid-old"} {
		alive := views[uid]
		again := alive.server.client("task:team:fix:" + uid + ":2")
		again.git("ls-remote", again.url)
		for _, seen := range []string{alive.server.refsOf(readerToken), alive.server.refsOf("task:team:fix:" + uid + ":2")} {
			if seen != alive.want {
				t.Errorf("%d: when %s lives, it and its readers see\n%s\nwant\n%s", n, uid, seen, alive.want)
			}
		}
	}
	if code, body := o.deleteTask(serverToken, "uid-old", "fix"); code != http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	place := refname.Displaced(uidAnew, "fix") + "uid-old/"
	want := place + "kept-too " + place + "kept/deeper refs/clew/uid-new/code/1"
	if got := strings.Join(strings.Fields(o.gitOut("for-each-ref", "--format=%(refname)")), " "); got != want {
		t.Errorf("with the old task deleted, the gitstore has %s, want %s", got, want)
	}
}

// TestAnAdoptedTaskBelongsToItsNamespaceAtOnce: also before a pod of the adopting one runs.
func TestAnAdoptedTaskBelongsToItsNamespaceAtOnce(t *testing.T) {
	o := newOld(t)
	o.tell(team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew))
	task := o.client("task:team:own:uid-own:1")
	task.commit("own", "words")
	task.push("HEAD:refs/clew/uid-own/code/1")
	if code, body := o.adopt(serverToken, "uid-next", "uid-own"); code != http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	if got, want := o.refsOf(readerToken), "refs/clew/uid-next/code/1 refs/clew/uid-own/code/1"; got != want {
		t.Errorf("its readers see %s, want %s", got, want)
	}
	if got := o.before.refsOf(readerToken); strings.Contains(got, "uid-next") {
		t.Errorf("the old namespace sees %s", got)
	}
	next := o.client("task:team:own:uid-next:1")
	next.git("fetch", "--quiet", next.url, "refs/clew/uid-next/code/1")
}

// TestNoBranchIsMadeForATaskThatMadeRoom: the name is that of another one's branches.
func TestNoBranchIsMadeForATaskThatMadeRoom(t *testing.T) {
	o := newOld(t)
	if err := o.begin(t.Context(), "uid-new"); err != nil {
		t.Fatal(err)
	}
	b := &branching{ctx: t.Context(), git: o.store.git, repository: o.store.repository("team", repository), task: Task{Namespace: "team", Name: "fix", UID: "uid-old"}, ref: "refs/heads/clew/fix/release", number: 1}
	refused := (*gitstoreapi.Refusal)(nil)
	if _, err := b.carryOut(o.store); !errors.As(err, &refused) || refused.Reason != gitstoreapi.Unavailable {
		t.Errorf("the answer is %v", err)
	}
}
