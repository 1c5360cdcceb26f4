package gitstore

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// listed lists the checkpoints of a task, as Clew's server does.
func (s *testServer) listed(uid string) []int64 {
	s.t.Helper()
	token := filepath.Join(s.t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(serverToken), 0o600); err != nil {
		s.t.Fatal(err)
	}
	client := gitstoreapi.Client{BaseURL: s.URL, CAFile: s.ca, TokenFile: token}
	numbers, err := client.Checkpoints(s.t.Context(), "team", uid)
	if err != nil {
		s.t.Fatal(err)
	}
	return numbers
}

func TestTheCheckpointsOfATaskAreListed(t *testing.T) {
	server, _ := withCheckpoints(t)
	if got := server.listed("uid-fix"); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("the gitstore has the checkpoints %v, want 1 to 3", got)
	}
	if got := server.listed("uid-nobody"); len(got) > 0 {
		t.Errorf("a task that has stored nothing has the checkpoints %v", got)
	}
	server.gitOut("update-ref", "-d", stateRef("fix", 2))
	server.gitOut("pack-refs", "--all")
	server.gitOut("update-ref", codeRef("fix", 10), codeRef("fix", 3))
	server.gitOut("update-ref", stateRef("fix", 10), stateRef("fix", 3))
	if got := server.listed("uid-fix"); !slices.Equal(got, []int64{1, 3, 10}) {
		t.Errorf("the gitstore has the checkpoints %v, want those of which it has both refs", got)
	}
}

func TestOnlyClewsServerListsCheckpoints(t *testing.T) {
	server, _ := withCheckpoints(t)
	for token, want := range map[string]int{serverToken: http.StatusOK, taskToken("fix", 1): http.StatusForbidden, "": http.StatusUnauthorized} {
		if code, body := server.ask(http.MethodGet, "/team/tasks/uid-fix/checkpoints", token); code != want {
			t.Errorf("with the token %q the answer is %d, %s; want %d", token, code, body, want)
		}
	}
	if code, _ := server.ask(http.MethodPost, "/team/tasks/uid-fix/checkpoints", serverToken); code == http.StatusOK {
		t.Error("a POST is answered")
	}
}
