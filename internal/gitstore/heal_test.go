package gitstore

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// healer is the client of a task's pod.
func (s *testServer) healer(token string) gitstoreapi.RepositoryClient {
	return gitstoreapi.RepositoryClient{URL: s.url("team", repository), CAFile: s.ca, Token: token}
}

// pack returns a pack of objects of the client's repository.
func (c *client) pack(ids ...string) string {
	c.t.Helper()
	command := exec.Command("git", "pack-objects", "--quiet", "--stdout")
	command.Dir, command.Env, command.Stdin = c.dir, c.env, strings.NewReader(strings.Join(ids, "\n")+"\n")
	out, err := command.Output()
	if err != nil {
		c.t.Fatal(err)
	}
	return string(out)
}

// heal brings what the gitstore lacks, and returns how many objects it lacked.
func (s *testServer) heal(fix *client, token string) int {
	s.t.Helper()
	lacking, err := s.healer(token).Lacking(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if len(lacking.Objects) == 0 {
		return 0
	}
	if _, err := s.healer(token).Heal(s.t.Context(), strings.NewReader(fix.pack(lacking.Objects...))); err != nil {
		s.t.Fatalf("heal %v: %v", lacking.Objects, err)
	}
	return len(lacking.Objects)
}

// healed heals the repository until checkpoint 3 is intact, and then lets maintenance remove
// what is left of the damage.
func (s *testServer) healed(fix *client, token, what string) {
	s.t.Helper()
	for range 4 { // what a damaged folder contains shows once it is healed
		if len(s.verify(3, again()).Damage) == 0 {
			break
		}
		s.heal(fix, token)
	}
	if v := s.verify(3, again()); len(v.Damage) > 0 {
		s.t.Errorf("%s: after healing: %v", what, v.Damage)
		return
	}
	if n := s.heal(fix, token); n > 0 {
		s.t.Errorf("%s: %d objects are still lacking", what, n)
	}
}

func TestADamagedObjectIsHealedByWhoeverHasIt(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			loosen(t, server.bare(repository))
			for what, id := range fix.objectsOf3() {
				if err := damage(looseFile(server.bare(repository), id)); err != nil {
					t.Fatal(err)
				}
				server.healed(fix, taskToken("fix", 1), what)
			}
			NewMaintainer(server.handler, time.Hour, 0, server.handler.log).maintainAll(t.Context())
			fsck(t, server.bare(repository))
			server.intact(1, 2, 3)
		})
	}
}

func TestADamagedPackIsHealedByWhoeverHasItsObjects(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			if err := damage(server.packOf(fix.objectsOf3()["commit"])); err != nil {
				t.Fatal(err)
			}
			server.healed(fix, taskToken("fix", 1), "pack")
			NewMaintainer(server.handler, time.Hour, 0, server.handler.log).maintainAll(t.Context())
			fsck(t, server.bare(repository))
			server.intact(1, 2, 3)
			fix.checkpoint(4) // pushes go on
		})
	}
}

func TestAForkHealsItsSource(t *testing.T) {
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	if err := os.Remove(looseFile(server.bare(repository), fix.objectsOf3()["blob"])); err != nil {
		t.Fatal(err)
	}
	server.verify(3)
	if n := server.heal(fix, taskToken("stranger", 1)); n != 0 {
		t.Errorf("another task is told of %d objects", n)
	}
	if n := server.heal(fix, forkToken("fork", "fix")); n != 1 {
		t.Errorf("the fork is told of %d objects, want 1", n)
	}
	server.intact(1, 2, 3)
}

func TestOnlyWhatIsLackingIsAccepted(t *testing.T) {
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	lacking := fix.objectsOf3()["blob"]
	if err := os.Remove(looseFile(server.bare(repository), lacking)); err != nil {
		t.Fatal(err)
	}
	server.verify(3)
	other := fix.gitWith("an object that nobody asked for", "hash-object", "-w", "--stdin")
	whole := fix.pack(lacking)
	for name, tc := range map[string]struct {
		token, body string
		reason      gitstoreapi.Reason
	}{
		"another object too": {taskToken("fix", 1), fix.pack(lacking, other), gitstoreapi.ObjectsRefused},
		"cut off":            {taskToken("fix", 1), whole[:len(whole)-9], gitstoreapi.ObjectsRefused},
		"not a pack":         {taskToken("fix", 1), "x", gitstoreapi.ObjectsRefused},
		"too many objects":   {taskToken("fix", 1), packHeader(2), gitstoreapi.ObjectsRefused},
		"a stranger":         {taskToken("stranger", 1), whole, gitstoreapi.ObjectsRefused},
		"a reader":           {readerToken, whole, gitstoreapi.Forbidden},
		"nobody":             {"", whole, gitstoreapi.Unauthenticated},
	} {
		_, err := server.healer(tc.token).Heal(t.Context(), strings.NewReader(tc.body))
		checkRefused(t, name, fmt.Sprint(err), tc.reason)
	}
	server.client(taskToken("fix", 2)).git("ls-remote", server.url("team", repository)) // a newer attempt
	_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), strings.NewReader(whole))
	checkRefused(t, "an older attempt", fmt.Sprint(err), gitstoreapi.StaleAttempt)
	if code, _ := server.ask(http.MethodGet, "/team/r-none.git/"+gitstoreapi.LackingPath, taskToken("fix", 2)); code != http.StatusOK {
		t.Errorf("a repository that does not exist: code %d", code)
	}
	if left, err := os.ReadDir(server.bare(repository) + "/objects/pack"); err != nil || len(left) > 0 {
		t.Errorf("something was stored: %v, %v", left, err)
	}
	server.heal(fix, taskToken("fix", 2))
	server.intact(3)
}

// packHeader returns the beginning of a pack of n objects.
func packHeader(n byte) string { return "PACK\x00\x00\x00\x02\x00\x00\x00" + string(rune(n)) }

// slowPack is the body of a request that sends head at once, and then zeros without end at twice
// the minimum rate.
type slowPack struct {
	head io.Reader
	tick *time.Ticker
}

func newSlowPack(t testing.TB, head string) *slowPack {
	const perSecond = 20
	tick := time.NewTicker(time.Second / perSecond)
	t.Cleanup(tick.Stop)
	return &slowPack{head: strings.NewReader(head), tick: tick}
}

func (b *slowPack) Read(p []byte) (int, error) {
	if n, err := b.head.Read(p); err == nil {
		return n, nil
	}
	<-b.tick.C
	n := min(len(p), 2*minRate/20)
	clear(p[:n])
	return n, nil
}

// lackingABlob returns a server on which a blob of checkpoint 3 is lacking, the task's client, and the
// blob's id.
func lackingABlob(t testing.TB, limits Limits) (*testServer, *client, string) {
	t.Helper()
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	lacking := fix.objectsOf3()["blob"]
	if err := os.Remove(looseFile(server.bare(repository), lacking)); err != nil {
		t.Fatal(err)
	}
	server.verify(3)
	return server.again(limits), fix, lacking
}

func TestWhileNothingIsLackingNoPackIsRead(t *testing.T) {
	server, _ := withCheckpoints(t)
	body := newSlowPack(t, packHeader(1))
	_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), body)
	checkRefused(t, "a pack without end", fmt.Sprint(err), gitstoreapi.ObjectsRefused)
}

func TestAPackOfMoreObjectsThanAreLackingIsNotRead(t *testing.T) {
	server, _, _ := lackingABlob(t, Limits{})
	_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), newSlowPack(t, packHeader(2)))
	checkRefused(t, "a pack without end", fmt.Sprint(err), gitstoreapi.ObjectsRefused)
}

func TestASlowHealerLosesItsSlotWhileAnotherNamespaceWaits(t *testing.T) {
	server, _, _ := lackingABlob(t, Limits{ConcurrentPushes: 1, Patience: time.Second})
	ended := make(chan error, 1)
	go func() {
		_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), newSlowPack(t, packHeader(1)))
		ended <- err
	}()
	server.inFlight(1)
	other := newClient(t, server.url("else", "r-other"), server.ca, "task:else:fix:uid-fix:1")
	other.commit("a", "x")
	other.push("HEAD:" + codeRef("fix", 1))
	if err := <-ended; err == nil {
		t.Error("a pack without end was accepted")
	}
}

func TestWhatHealsIsBoundedLikeAPush(t *testing.T) {
	server, fix, lacking := lackingABlob(t, Limits{PushBytes: 64})
	pack := fix.pack(lacking)
	_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), strings.NewReader(pack+strings.Repeat("x", 64)))
	checkRefused(t, "a large pack", fmt.Sprint(err), gitstoreapi.PushTooLarge)
}

func TestWhatIsRefusedIsNotChargedToTheNamespace(t *testing.T) {
	server, fix, lacking := lackingABlob(t, Limits{NamespaceBytes: 1 << 30})
	whole := fix.pack(lacking)
	_, err := server.healer(taskToken("fix", 1)).Heal(t.Context(), strings.NewReader(whole[:len(whole)-9]))
	checkRefused(t, "cut off", fmt.Sprint(err), gitstoreapi.ObjectsRefused)
	for _, size := range server.handler.usage.known() {
		if size.received != 0 || size.underWay != 0 {
			t.Errorf("%d bytes are charged as received, and %d as under way", size.received, size.underWay)
		}
	}
}
