package gitstore

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// noise returns text of n bytes that does not compress below half its size.
func noise(n int) string {
	content := make([]byte, n/2)
	_, _ = rand.Read(content) // never fails
	return hex.EncodeToString(content)
}

func TestNamespaceQuota(t *testing.T) {
	server := newTestServer(t, Limits{NamespaceBytes: 1 << 20})
	task := server.client(taskToken("fix", 1))
	task.commit("a", noise(600_000))
	task.push("HEAD:" + codeRef("fix", 1))

	// A push larger than the rest of the quota is refused while it is received, and may be
	// repeated when there is space.
	task.commit("b", noise(2_600_000))
	task.refusedPush(gitstoreapi.QuotaExceeded, "the rest of namespace team's quota of 1048576 bytes", "HEAD:"+codeRef("fix", 2))
	if use, err := diskUse(server.bare(repository)); err != nil || use > 1<<20 {
		t.Errorf("the refused push left %d bytes, %v", use, err)
	}

	task.git("reset", "--quiet", "--hard", "HEAD~1")
	task.commit("b", noise(100_000))
	task.push("HEAD:" + codeRef("fix", 2))
	// Once the quota is used up, every push is refused, in other repositories of the
	// namespace too; fetches still work.
	strict := server.again(Limits{NamespaceBytes: 300_000})
	task.url = strict.url("team", repository)
	task.env = append(task.env, "GIT_SSL_CAINFO="+strict.ca)
	task.commit("c", "small")
	stderr := task.refusedPush(gitstoreapi.QuotaExceeded, "the repositories of the namespace team take", "HEAD:"+codeRef("fix", 3))
	if !strings.Contains(stderr, "507") {
		t.Errorf("no status 507 in %s", stderr)
	}
	elsewhere := newClient(t, strict.url("team", "r-other"), strict.ca, taskToken("fix", 1))
	elsewhere.commit("a", "small")
	elsewhere.refusedPush(gitstoreapi.QuotaExceeded, "kubectl clew task delete-history", "HEAD:"+codeRef("fix", 3))
	task.git("fetch", "--quiet", task.url, codeRef("fix", 1))
	// Other namespaces have quotas of their own.
	other := newClient(t, strict.url("else", "r-other"), strict.ca, "task:else:fix:uid-fix:1")
	other.commit("a", "small")
	other.push("HEAD:" + codeRef("fix", 1))
	fsck(t, server.bare(repository))
}

func TestConcurrentPushesCannotExceedTheQuotaTogether(t *testing.T) {
	const quota, pushes = 3 << 20, 6
	server := newTestServer(t, Limits{NamespaceBytes: quota})
	var all sync.WaitGroup
	var stored, refused atomic.Int64
	for i := range pushes {
		name := fmt.Sprintf("t%d", i)
		task := server.client(taskToken(name, 1))
		task.commit("a", noise(2<<20)) // 1 MiB once compressed
		all.Go(func() {
			_, stderr, err := task.try("push", task.url, "HEAD:"+codeRef(name, 1))
			reason, _ := gitstoreapi.Parse(stderr)
			switch {
			case err == nil:
				stored.Add(1)
			case reason != nil && reason.Reason == gitstoreapi.QuotaExceeded:
				refused.Add(1)
			default:
				t.Errorf("a push failed for a reason other than the quota: %s", stderr)
			}
		})
	}
	all.Wait()
	if use, err := diskUse(server.bare(repository)); err != nil || use > quota {
		t.Errorf("%d bytes are stored, %v; the quota is %d", use, err, quota)
	}
	if stored.Load() < 1 || stored.Load()+refused.Load() != pushes {
		t.Errorf("%d of %d pushes were stored and %d refused, want one stored at least and no other outcome", stored.Load(), pushes, refused.Load())
	}
}

func TestPushThatIsTooLarge(t *testing.T) {
	server := newTestServer(t, Limits{PushBytes: 1 << 20})
	task := server.client(taskToken("fix", 1))
	task.commit("a", noise(9_000_000))
	stderr := task.refusedPush(gitstoreapi.PushTooLarge, "", "HEAD:"+codeRef("fix", 1))
	if strings.Contains(stderr, "RPC failed") || strings.Contains(stderr, "early EOF") {
		t.Errorf("the connection was reset, or git's own error was shown: %s", stderr)
	}
	if use, err := diskUse(server.bare(repository)); err != nil || use > 1<<20 {
		t.Errorf("the refused push left %d bytes, %v", use, err)
	}
	task.git("checkout", "--quiet", "--orphan", "small")
	task.git("rm", "--quiet", "-rf", ".")
	task.commit("b", "small")
	task.push("HEAD:" + codeRef("fix", 1))
}

// volume reports how much is free; a negative number stands for an error.
type volume struct{ free atomic.Int64 }

func (v *volume) ask() (int64, error) {
	free := v.free.Load()
	if free < 0 {
		return 0, errors.New("stale file handle")
	}
	return free, nil
}

func TestFullVolume(t *testing.T) {
	server := newTestServer(t, Limits{FreeBytes: 1 << 20})
	var volume volume
	volume.free.Store(1 << 30)
	server.handler.free = volume.ask
	task := server.client(taskToken("fix", 1))
	task.commit("a", "one")
	task.push("HEAD:" + codeRef("fix", 1))
	volume.free.Store(1 << 20)
	stderr := task.refusedPush(gitstoreapi.VolumeFull, "volume has 1048576 bytes free", "HEAD:"+codeRef("fix", 2))
	if !strings.Contains(stderr, "507") {
		t.Errorf("no status 507 in %s", stderr)
	}
	task.git("fetch", "--quiet", task.url, codeRef("fix", 1))
	// A push that does not fit is cut off, but may be repeated.
	volume.free.Store(1<<20 + 10_000)
	task.commit("b", noise(1_000_000))
	task.refusedPush(gitstoreapi.VolumeFull, "the push needs more", "HEAD:"+codeRef("fix", 2))
	volume.free.Store(-1)
	task.refusedPush(gitstoreapi.Unavailable, "try again", "HEAD:"+codeRef("fix", 2))
	// There is space again.
	volume.free.Store(1 << 30)
	task.push("HEAD:" + codeRef("fix", 2))
}

// The volume fills up between the two requests of a push: git does not show the body of a
// failed request, so the refusal travels in git's own protocol.
func TestARefusalDuringAPushIsShown(t *testing.T) {
	server := newTestServer(t, Limits{FreeBytes: 1})
	var asked atomic.Int64
	server.handler.free = func() (int64, error) {
		if asked.Add(1) > 2 { // once for the list of refs, once to create the repository
			return 0, nil
		}
		return 1 << 30, nil
	}
	task := server.client(taskToken("fix", 1))
	task.commit("a", noise(3_000_000))
	task.env = append(task.env, "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=http.postBuffer", "GIT_CONFIG_VALUE_1=16m")
	stderr := task.refusedPush(gitstoreapi.VolumeFull, "remote: clew: VolumeFull: the gitstore's volume has 0 bytes free", "HEAD:"+codeRef("fix", 1))
	if strings.Contains(stderr, "507") {
		t.Errorf("the refusal was sent outside git's protocol: %s", stderr)
	}
}

func TestDiskUseIsWhatDuSays(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	task.commit("a", noise(100_000))
	task.push("HEAD:" + codeRef("fix", 1))
	output, err := exec.Command("du", "--block-size=1", "--summarize", server.bare(repository)).Output()
	if err != nil {
		t.Fatal(err)
	}
	use, err := diskUse(server.bare(repository))
	if err != nil || !strings.HasPrefix(string(output), strconv.FormatInt(use, 10)+"\t") {
		t.Errorf("measured %d (%v), du says %s", use, err, output)
	}
}

func TestUsageMeasuresRarelyAndCountsReceivedBytes(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	usage := newUsage(func() time.Time { return now })
	repo := Repository{Path: t.TempDir()}
	ask := func(limit int64) int64 {
		t.Helper()
		bytes, err := usage.namespace([]Repository{repo}, limit)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	base := ask(0)
	usage.begin(repo, 5000, 0)
	usage.end(repo, 5000, true)
	if got := ask(0); got != base+5000 {
		t.Errorf("the usage is %d after 5000 bytes were received, want %d", got, base+5000)
	}
	// Apparently above the limit, but measured a moment ago.
	if got := ask(base + 1000); got != base+5000 {
		t.Errorf("measured again at once: %d", got)
	}
	// Measured again before the quota counts as used up: the bytes are not on the disk.
	now = now.Add(usageRecheck)
	if got := ask(base + 1000); got != base {
		t.Errorf("the usage is %d, want the measured %d", got, base)
	}
}
