package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"google.golang.org/protobuf/testing/protocmp"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/pgtest"
	"github.com/clew-dev/clew/internal/toolcall"
)

func bundle64(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }

// running is a server started by a test.
type running struct {
	t                    *testing.T
	main, metrics, probe net.Addr
	stop                 context.CancelFunc
	ended                chan error
	logs                 *gbytes.Buffer
	dsn                  string
}

func start(t *testing.T, dsn string, config *rest.Config, code GitStoreOptions) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, stop: cancel, ended: make(chan error, 1), logs: gbytes.NewBuffer(), dsn: dsn}
	local := "127.0.0.1:0"
	o := Options{
		BindAddress: local, MetricsBindAddress: local, HealthProbeBindAddress: "localhost:0", Audiences: []string{"server.clew.dev", "clew.dev"},
		CertFile: filepath.Join(served, "tls.crt"), KeyFile: filepath.Join(served, "tls.key"), ShutdownGracePeriod: 10 * time.Second,
		GitStore: code, ManagerLeaseNamespace: "clew-system",
	}
	l, err := listen(o)
	if err != nil {
		t.Fatal(err)
	}
	r.main, r.metrics, r.probe = l.main.Addr(), l.metrics.Addr(), l.probes.Addr()
	go func() {
		r.ended <- serve(ctx, o, dsn, config, l, funcr.NewJSON(func(line string) { fmt.Fprintln(r.logs, line) }, funcr.Options{}))
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
		close(r.ended)
		if t.Failed() {
			t.Log(string(r.logs.Contents()))
		}
	})
	return r
}

// end stops the server as a signal would and returns its error.
func (r *running) end() error {
	r.stop()
	select {
	case err := <-r.ended:
		r.ended <- err // for the cleanup
		return err
	case <-time.After(20 * time.Second):
		return fmt.Errorf("the server did not end")
	}
}

func (r *running) ready() (bool, string) {
	code, body := r.get("http://" + r.probe.String() + "/readyz")
	return code == http.StatusOK, body
}

func (r *running) get(url string) (int, string) {
	r.t.Helper()
	response, err := http.Get(url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func (r *running) daemon(token string) daemonv1connect.DaemonServiceClient {
	r.t.Helper()
	pem, err := os.ReadFile(filepath.Join(served, "ca.crt"))
	if err != nil {
		r.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}, ForceAttemptHTTP2: true}
	r.t.Cleanup(transport.CloseIdleConnections)
	return daemonv1connect.NewDaemonServiceClient(&http.Client{Transport: bearer{token, transport}}, "https://"+r.main.String())
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	gomega.NewWithT(t).Eventually(check).WithTimeout(30*time.Second).WithPolling(20*time.Millisecond).Should(gomega.Succeed(), what)
}

func (r *running) awaitReady() {
	r.t.Helper()
	eventually(r.t, "ready", func() error {
		if ok, body := r.ready(); !ok {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
}

func message(sequence int64, text string) *daemonv1.Record {
	return &daemonv1.Record{Sequence: sequence, Body: &daemonv1.Record_Message{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: text}}}
}

// TestServer runs a server with the rights that it has in a cluster, a real API server,
// and a real PostgreSQL that starts late and goes away.
func TestServer(t *testing.T) {
	for _, name := range []string{"clew-system", "team", "elsewhere"} {
		namespace(t, name)
	}
	account(t, "team", "clew-task")
	account(t, "elsewhere", "clew-task")
	account(t, "team", "bob")
	config := serverAccount(t)
	ann, bob := reader(t, "team", "ann"), configOf(t, "team", "bob")
	task := newTask(t, "team", "a")
	token := podToken(t, task, 1)

	database, err := pgtest.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Stop() })
	dsn := database.Database(t)
	if err := database.StopNow(); err != nil {
		t.Fatal(err)
	}
	code := startGitStore(t)
	r := start(t, dsn, config, code.options)
	daemon := r.daemon(token)

	t.Run("the database is late", func(t *testing.T) {
		_, err := daemon.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{}))
		if connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("begin: %v", err)
		}
		if ok, body := r.ready(); ok || !strings.Contains(body, "schema") {
			t.Errorf("ready: %v, %s", ok, body)
		}
		if err := database.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.awaitReady()
	})
	t.Run("daemon", func(t *testing.T) {
		if _, err := daemon.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{})); err != nil {
			t.Fatal(err)
		}
		records := []*daemonv1.Record{message(1, "hello"), message(2, "again")}
		if _, err := daemon.Append(t.Context(), connect.NewRequest(&daemonv1.AppendRequest{Records: records})); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a pod that poses as another namespace's task", func(t *testing.T) {
		imposter := r.daemon(forgedToken(t, task, "elsewhere", 9))
		_, err := imposter.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{}))
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("begin: %v", err)
		}
	})
	t.Run("a pod that somebody made with a task's labels", func(t *testing.T) {
		forged := r.daemon(forgedToken(t, task, "team", math.MaxInt64))
		_, err := forged.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{}))
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("begin: %v", err)
		}
		if _, err := daemon.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{})); err != nil {
			t.Errorf("the task's own pod is fenced off: %v", err)
		}
	})
	t.Run("a supervisor is told of its tasks", func(t *testing.T) { supervisor(t, r) })
	t.Run("manual checkpoint", func(t *testing.T) { manualCheckpoint(t, daemon) })
	t.Run("aggregated API", func(t *testing.T) {
		aggregate(t, r.main)
		aggregated(t, ann, bob)
	})
	t.Run("a timeline is watched", func(t *testing.T) { watched(t, r, ann, task) })
	// A deletion that has begun is also finished by the maintenance, whose next pass is long after the first.
	eventually(t, "the first pass of the maintenance", func() error {
		if _, body := r.get("http://" + r.metrics.String() + "/metrics"); !strings.Contains(body, "clew_history_retention_applied_timestamp_seconds 1.") {
			return errors.New("it has not ended")
		}
		return nil
	})
	t.Run("a history and its code are deleted", func(t *testing.T) { deletion(t, code, ann, bob, task, token) })
	t.Run("what the retention of histories asks", func(t *testing.T) { retention(t, code) })
	task = newTask(t, "team", "a2")
	daemon = r.daemon(podToken(t, task, 1))
	if _, err := daemon.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{})); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Append(t.Context(), connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{message(1, "hello"), message(2, "again")}})); err != nil {
		t.Fatal(err)
	}
	t.Run("the database goes away", func(t *testing.T) {
		if err := database.StopNow(); err != nil {
			t.Fatal(err)
		}
		_, err := daemon.Append(t.Context(), connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{message(3, "late")}}))
		if connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("append: %v", err)
		}
		if ok, body := r.ready(); !ok {
			t.Errorf("not ready: %s", body)
		}
		if err := database.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "append", func() error {
			_, err := daemon.Append(t.Context(), connect.NewRequest(&daemonv1.AppendRequest{Records: []*daemonv1.Record{message(3, "late")}}))
			return err
		})
	})
	t.Run("metrics", func(t *testing.T) {
		_, body := r.get("http://" + r.metrics.String() + "/metrics")
		for _, want := range []string{
			`clew_gateway_requests_total{code="ok",procedure="Begin"} 4`, "clew_history_connections ", "clew_gateway_records_total 5",
			`clew_history_api_requests_total{code="200",resource="tasks/conversation"}`, "go_goroutines",
		} {
			if !strings.Contains(body, want) {
				t.Errorf("no %s", want)
			}
		}
	})
	t.Run("end", func(t *testing.T) { ends(t, r, daemon) })
	t.Run("the API server's state is put back", func(t *testing.T) { putBack(t, start(t, dsn, config, code.options)) })
	if strings.Contains(string(r.logs.Contents()), token) {
		t.Error("the token is in the log")
	}
}

// supervisor checks that the agent of a supervisor learns of a child, and gets the answer to a call that
// the manager carries out.
func supervisor(t *testing.T, r *running) {
	lead := builders.Task("lead", builders.InNamespace("team"))
	lead.Spec.Role, lead.Spec.Contract = clewv1alpha1.RoleSupervisor, &clewv1alpha1.Contract{Name: "port"}
	create(t, lead)
	child := builders.Task("lead-parser", builders.InNamespace("team"))
	child.Labels = map[string]string{clewv1alpha1.LabelParent: "lead"}
	child.Spec.ParentRef = &clewv1alpha1.NameReference{Name: "lead"}
	create(t, child)
	child.Status.Parent = &clewv1alpha1.ParentStatus{Name: "lead", UID: string(lead.UID), Depth: 1}
	if err := kube.Client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	daemon := r.daemon(podToken(t, lead, 1))
	if _, err := daemon.Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is listed", func() error {
		answer, err := daemon.CallTool(t.Context(), connect.NewRequest(&daemonv1.CallToolRequest{Tool: "task_list", Arguments: []byte(`{}`)}))
		if err == nil && !strings.Contains(answer.Msg.GetText(), "parser: Waiting") {
			err = errors.New(answer.Msg.GetText())
		}
		return err
	})
	store, err := postgres.Open(t.Context(), r.dsn, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	go func() {
		_ = store.ListenToolCalls(t.Context(), func(n history.ToolCallNotification) {
			if n.ID != "" && !n.Answered {
				_ = store.AnswerToolCall(t.Context(), n.ID, toolcall.Answer{Text: "it is stopped"})
			}
		})
	}()
	eventually(t, "a call is answered", func() error {
		answer, err := daemon.CallTool(t.Context(), connect.NewRequest(&daemonv1.CallToolRequest{Tool: "task_stop", Arguments: []byte(`{"task":"parser"}`)}))
		if err == nil && answer.Msg.GetText() != "it is stopped" {
			err = errors.New(answer.Msg.String())
		}
		return err
	})
}

func manualCheckpoint(t *testing.T, daemon daemonv1connect.DaemonServiceClient) {
	stream, err := daemon.Commands(t.Context(), connect.NewRequest(&daemonv1.CommandsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	byManager := &clewv1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a-1", Labels: map[string]string{clewv1alpha1.LabelManagedBy: clewv1alpha1.ManagedBy}},
		Spec:       clewv1alpha1.CheckpointSpec{TaskRef: clewv1alpha1.NameReference{Name: "a"}},
	}
	create(t, byManager)
	manual := byManager.DeepCopy()
	manual.ObjectMeta = metav1.ObjectMeta{Namespace: "team", Name: "manual"}
	manual.Spec.Message = "please"
	create(t, manual)
	for stream.Receive() {
		if c := stream.Msg().GetTakeCheckpoint(); c != nil {
			want := &daemonv1.TakeCheckpoint{Name: "manual", Uid: string(manual.UID), Message: "please"}
			if d := cmp.Diff(want, c, protocmp.Transform()); d != "" {
				t.Errorf("command (-want +got):\n%s", d)
			}
			return
		}
	}
	t.Fatalf("the stream ended: %v", stream.Err())
}

func aggregated(t *testing.T, ann, bob *rest.Config) {
	const path = "/apis/history.clew.dev/v1alpha1/namespaces/team/tasks/a/conversation"
	read := func(config *rest.Config, path string) ([]byte, error) {
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return clients.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	}
	var list historyv1alpha1.ConversationList
	eventually(t, "read through the API server", func() error {
		body, err := read(ann, path)
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &list)
	})
	if len(list.Items) != 2 || list.Items[1].Text != "again" {
		t.Errorf("conversation: %+v", list.Items)
	}
	if _, err := read(ann, "/apis/history.clew.dev/v1alpha1/namespaces/team/timelines"); err != nil {
		t.Errorf("timelines: %v", err)
	}
	if _, err := read(bob, path); !apierrors.IsForbidden(err) {
		t.Errorf("bob reads: %v", err)
	}
	if _, err := read(ann, strings.Replace(path, "team", "elsewhere", 1)); !apierrors.IsForbidden(err) {
		t.Errorf("ann reads elsewhere: %v", err)
	}
	if _, err := read(ann, strings.Replace(path, "/a/", "/b/", 1)); !apierrors.IsNotFound(err) {
		t.Errorf("ann reads what is not there: %v", err)
	}
	found := discovery.NewDiscoveryClientForConfigOrDie(ann)
	eventually(t, "discovery", func() error {
		resources, err := found.ServerPreferredResources()
		if err != nil {
			return err
		}
		for _, group := range resources {
			for _, resource := range group.APIResources {
				if resource.Name == "timelines" {
					return nil
				}
			}
		}
		return fmt.Errorf("timelines are not discovered")
	})
}

// ends checks that a signal ends the streams, and then the server.
func ends(t *testing.T, r *running, daemon daemonv1connect.DaemonServiceClient) {
	stream, err := daemon.Commands(t.Context(), connect.NewRequest(&daemonv1.CommandsRequest{}))
	if err != nil || !stream.Receive() {
		t.Fatalf("commands: %v", err)
	}
	if err := r.end(); err != nil {
		t.Errorf("ended with %v", err)
	}
	for stream.Receive() {
	}
	if code := connect.CodeOf(stream.Err()); code != connect.CodeUnavailable {
		t.Errorf("the stream ended with %v", stream.Err())
	}
}

// putBack keeps restoring an older manager's lease until the server, which reads it every
// few seconds, notices.
func putBack(t *testing.T, r *running) {
	renewed := time.Now()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "clew-system", Name: "clew-manager"}}
	create(t, lease)
	eventually(t, "it ends", func() error {
		select {
		case err := <-r.ended:
			r.ended <- err // for the cleanup
			if err == nil || !strings.Contains(err.Error(), "state was restored") {
				t.Errorf("ended with %v", err)
			}
			return nil
		default:
		}
		renewed = renewed.Add(-time.Second)
		lease.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
		if err := kube.Client.Update(t.Context(), lease); err != nil {
			return err
		}
		return fmt.Errorf("the server is still running")
	})
}

func TestOptionsAreChecked(t *testing.T) {
	t.Setenv(postgres.DSNEnv, "")
	empty := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		options Options
		want    string
	}{
		"log level":              {Options{LogLevel: "loud"}, "--log-level"},
		"no TLS":                 {Options{LogLevel: "info"}, "--tls-cert-file"},
		"ports":                  {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", MetricsBindAddress: ":1", HealthProbeBindAddress: ":1"}, "must differ"},
		"no TLS to the gitstore": {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", GitStore: GitStoreOptions{URL: "http://gitstore"}}, "--gitstore-url"},
		"hasty retention":        {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Retention: RetentionOptions{Events: time.Minute}}, "--event-retention is 1m0s"},
		"no audience":            {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Audiences: []string{}}, "--audience"},
		"a negative import":      {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", ImportBytes: -1}, "--max-import-bytes"},
		"a negative limit":       {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Limits: postgres.Limits{TaskBytes: -1}}, "--task-history-bytes"},
		"a task over all":        {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Limits: postgres.Limits{TaskBytes: 2, NamespaceBytes: 1}}, "--task-history-bytes is 2, more than"},
		"a long grace":           {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Limits: postgres.Limits{Grace: 5 * time.Minute}}, "--history-limit-grace"},
		"no DSN":                 {Options{LogLevel: "info", CertFile: "c", KeyFile: "k"}, postgres.DSNEnv},
		"empty DSN":              {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Database: DSNOptions{File: empty}}, "empty"},
		"lost DSN":               {Options{LogLevel: "info", CertFile: "c", KeyFile: "k", Database: DSNOptions{File: empty + "x"}}, "--dsn-file"},
	}
	for name, tt := range tests {
		if err := Run(t.Context(), tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
