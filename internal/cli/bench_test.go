package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// server is the API server of this package's tests, set once by TestMain.
var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

// bench is a namespace of the API server and a kubeconfig for the plugin to use it.
type bench struct {
	*testing.T
	ctx        context.Context
	namespace  string
	kubeconfig string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cli-"}}
	if err := server.Client.Create(ctx, ns); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, ctx: ctx, namespace: ns.Name}
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: server.Config.Host, CertificateAuthorityData: server.Config.CAData},
		clientcmdapi.AuthInfo{ClientCertificateData: server.Config.CertData, ClientKeyData: server.Config.KeyData})
	return b
}

// write writes a kubeconfig with one cluster and user, and returns its path.
func (b *bench) write(cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": &cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": &user},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test", Namespace: b.namespace}},
		CurrentContext: "test",
	}, file)
	if err != nil {
		b.Fatal(err)
	}
	return file
}

// clew runs the plugin. A non-empty answer makes it interactive and is its standard input.
func (b *bench) clew(answer string, args ...string) (stdout, stderr string, err error) {
	b.Helper()
	var out, errOut bytes.Buffer
	cmd := New(genericiooptions.IOStreams{In: strings.NewReader(answer), Out: &out, ErrOut: &errOut}, Options{
		Clock: func() time.Time { return noon }, Location: time.UTC, Interactive: answer != "",
		NewID: func() (string, error) { return "cli-abcdefgh", nil },
	})
	cmd.SetArgs(append([]string{"--kubeconfig", b.kubeconfig}, args...))
	err = cmd.ExecuteContext(b.ctx)
	return out.String(), errOut.String(), err
}

// running is a command of the plugin that runs until it ends or is interrupted.
type running struct {
	b         *bench
	interrupt context.CancelFunc
	out       output
	ended     chan error
}

// output is what a command has printed, and may be read meanwhile.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the plugin in the background.
func (b *bench) start(args ...string) *running {
	b.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	r := &running{b: b, interrupt: cancel, ended: make(chan error, 1)}
	cmd := New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &r.out, ErrOut: &r.out}, Options{
		Clock: func() time.Time { return noon }, Location: time.UTC,
	})
	cmd.SetArgs(append([]string{"--kubeconfig", b.kubeconfig}, args...))
	go func() { r.ended <- cmd.ExecuteContext(ctx) }()
	b.Cleanup(cancel)
	return r
}

// waitFor waits until the command has printed every part.
func (r *running) waitFor(parts ...string) {
	r.b.Helper()
	printed := func(context.Context) (bool, error) {
		text := r.out.String()
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }), nil
	}
	if err := wait.PollUntilContextTimeout(r.b.ctx, 20*time.Millisecond, 30*time.Second, true, printed); err != nil {
		r.b.Fatalf("the command has not printed %q:\n%s", parts, r.out.String())
	}
}

// end waits until the command ends without an error, and returns all that it has printed.
func (r *running) end() string {
	r.b.Helper()
	select {
	case err := <-r.ended:
		r.b.try(err)
	case <-r.b.ctx.Done():
		r.b.Fatalf("the command does not end:\n%s", r.out.String())
	}
	return r.out.String()
}

// must runs the plugin and fails the test if the plugin fails.
func (b *bench) must(args ...string) (stdout, stderr string) {
	b.Helper()
	stdout, stderr, err := b.clew("", args...)
	if err != nil {
		b.Fatalf("kubectl clew %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return stdout, stderr
}

// task creates a task whose condition Succeeded has the reason.
func (b *bench) task(name, reason string) *v1alpha1.Task {
	b.Helper()
	task := builders.Task(name, builders.InNamespace(b.namespace))
	if reason == v1alpha1.ReasonSuspended {
		builders.Suspended(task)
	}
	b.try(server.Client.Create(b.ctx, task))
	if reason != "" {
		task.Status.MessageCount = 40
		setSucceeded(task, reason)
		b.try(server.Client.Status().Update(b.ctx, task))
	}
	return task
}

func setSucceeded(task *v1alpha1.Task, reason string) {
	status := metav1.ConditionUnknown
	switch reason {
	case v1alpha1.ReasonCompleted:
		status = metav1.ConditionTrue
	case v1alpha1.ReasonAgentFailed, v1alpha1.ReasonDeadlineExceeded:
		status = metav1.ConditionFalse
	}
	apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason, ObservedGeneration: task.Generation})
}

// checkpoint creates a checkpoint of the task that has been taken.
func (b *bench) checkpoint(task *v1alpha1.Task, number int64) *v1alpha1.Checkpoint {
	b.Helper()
	c := takenCheckpoint(number, fmt.Sprintf("%s-%d", task.Name, number))
	c.Namespace, c.Spec.TaskRef.Name, c.Status.TaskUID = b.namespace, task.Name, string(task.UID)
	for i := range c.Status.Conditions {
		c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(noon)
	}
	status := c.Status
	b.try(server.Client.Create(b.ctx, &c))
	c.Status = status
	b.try(server.Client.Status().Update(b.ctx, &c))
	return &c
}

// try fails the test if there is an error.
func (b *bench) try(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// get reads the current state of an object.
func (b *bench) get(object client.Object) {
	b.Helper()
	b.try(server.Client.Get(b.ctx, client.ObjectKeyFromObject(object), object))
}

// playManager watches objects until act returns true, and writes the status of that
// object once.
func playManager[T client.Object](b *bench, list client.ObjectList, act func(T) bool) {
	b.Helper()
	c, err := client.NewWithWatch(server.Config, client.Options{Scheme: server.Scheme})
	b.try(err)
	w, err := c.Watch(b.ctx, list, client.InNamespace(b.namespace))
	b.try(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if object, ok := event.Object.(T); ok && act(object) {
				if err := server.Client.Status().Update(b.ctx, object); err != nil {
					b.Errorf("write the status: %v", err)
				}
				return
			}
		}
	}()
	b.Cleanup(func() { w.Stop(); <-done })
}

// wantText compares a text that the plugin printed.
func wantText(t testing.TB, what, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantParts checks that a text contains every part.
func wantParts(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %q:\n%s", what, part, text)
		}
	}
}

// decode decodes JSON that the plugin printed.
func decode[T any](t testing.TB, text string) (object T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("the output is not JSON: %v\n%s", err, text)
	}
	return object
}
