package gitstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestClientDeletes(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	fix.commit("a", "private")
	fix.push("HEAD:"+codeRef("fix", 1), "HEAD:refs/heads/clew/fix/before")
	token := filepath.Join(t.TempDir(), "token")
	client := gitstoreapi.Client{BaseURL: server.URL + "/", CAFile: server.ca, TokenFile: token}
	write := func(content string) {
		if err := os.WriteFile(token, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	failing := func(name string, client gitstoreapi.Client, says string) {
		t.Helper()
		if _, err := client.DeleteTask(t.Context(), "team", "uid-fix", "fix", nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got error %v, want one that contains %q", name, err, says)
		}
	}
	failing("no token", client, "the token for the gitstore")
	write(readerToken)
	var refused *gitstoreapi.Refusal
	if _, err := client.DeleteTask(t.Context(), "team", "uid-fix", "fix", nil); !errors.As(err, &refused) || refused.Reason != gitstoreapi.Forbidden {
		t.Errorf("a reader's token: got %v, want a refusal as Forbidden", err)
	}
	write(serverToken + "\n")
	failing("no server", gitstoreapi.Client{BaseURL: "https://127.0.0.1:1", TokenFile: token}, "cannot be reached")
	failing("unknown certificates", gitstoreapi.Client{BaseURL: server.URL, TokenFile: token}, "cannot be reached")
	failing("no certificates", gitstoreapi.Client{BaseURL: server.URL, TokenFile: token, CAFile: token}, "no PEM certificate")
	for _, want := range []int{2, 0} {
		deletion, err := client.DeleteTask(t.Context(), "team", "uid-fix", "fix", nil)
		if err != nil || deletion.Refs != want {
			t.Errorf("DeleteTask returned %+v, %v; want %d refs", deletion, err, want)
		}
	}
}
