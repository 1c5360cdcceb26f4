package crash_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var (
	server *apiserver.Server
	pg     *pgtest.Server
	// program is the path of the manager.
	program string
)

// atOnce is how many runs go on side by side: they mostly wait.
const atOnce = "6"

func TestMain(m *testing.M) {
	code, err := withServers(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withServers builds the manager, starts the API server and Postgres, and runs the tests.
func withServers(m *testing.M) (code int, err error) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		return 0, err
	}
	folder, err := os.MkdirTemp("", "clew-crash-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(folder)
	program = filepath.Join(folder, "manager")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/manager").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the manager: %w\n%s", err, out)
	}
	if server, err = apiserver.Start(); err != nil {
		return 0, err
	}
	defer func() {
		if stopped := server.Stop(); stopped != nil && err == nil {
			err = stopped
		}
	}()
	return pgtest.Run(m, &pg, postgres.Migrate), nil
}
