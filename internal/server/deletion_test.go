package server

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/gitstore"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// codeOf is a real gitstore that verifies tokens with the API server.
type codeOf struct {
	options GitStoreOptions
	root    string
	server  *httptest.Server
}

func startGitStore(t *testing.T) codeOf {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	c := codeOf{root: filepath.Join(folder, "root")}
	if err := os.Mkdir(c.root, 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := gitstore.Open(t.Context(), c.root, 0, []string{binary, "hook", "pre-receive"})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	names, err := namespaceid.New(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := dynamic.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	authenticator := gitstore.PodAuthenticator{
		Names: names, Tasks: gitstore.NewLiveTasks(tasks),
		Verifier: podidentity.New(clients, names, podidentity.Options{Audiences: []string{"gitstore.clew.dev"}}), Server: gitstore.ServiceAccount{Namespace: "clew-system", Name: "server"},
	}
	handler, err := gitstore.NewHandler(store, authenticator, gitstore.Limits{}, logr.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	c.server = httptest.NewTLSServer(handler)
	t.Cleanup(c.server.Close)
	c.options = GitStoreOptions{URL: c.server.URL, CAFile: filepath.Join(folder, "ca.pem"), TokenFile: filepath.Join(folder, "token")}
	token := tokenOf(t, "clew-system", "server", authenticationv1.TokenRequestSpec{Audiences: []string{"gitstore.clew.dev"}})
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	for path, content := range map[string]string{c.options.CAFile: string(authority), c.options.TokenFile: token} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// repositoryOfTasks is the repository in which the tests' tasks store their checkpoints.
func repositoryOfTasks() string {
	return daemonapi.RepositoryKey(builders.Task("any").Spec.Repository.URL) + ".git"
}

// push pushes a checkpoint of the task as its daemon does.
func (c codeOf) push(t *testing.T, task *clewv1alpha1.Task, token, content string) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "--quiet", "."}, {"add", "a"}, {"commit", "--quiet", "--message=work"},
		{"push", "--quiet", c.server.URL + "/team/" + repositoryOfTasks(), fmt.Sprintf("HEAD:refs/clew/%s/code/1", task.UID)},
	} {
		command := exec.Command("git", args...)
		command.Dir = folder
		command.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_SSL_CAINFO=" + c.options.CAFile,
			"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer " + token,
		}
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, output)
		}
	}
}

// holds reports whether an object in the gitstore contains the text.
func (c codeOf) holds(t *testing.T, text string) bool {
	t.Helper()
	command := exec.Command("git", "--git-dir="+filepath.Join(c.root, "namespaces", "team", repositoryOfTasks()), "cat-file", "--batch-all-objects", "--batch")
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(output), text)
}

// deletion tests deletions through the API server, with users' rights.
func deletion(t *testing.T, code codeOf, ann, bob *rest.Config, task *clewv1alpha1.Task, token string) {
	const histories = "/apis/history.clew.dev/v1alpha1/namespaces/team/taskhistories"
	ask := func(config *rest.Config, verb, path string, params ...string) ([]byte, error) {
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		request := clients.RESTClient().Verb(verb).AbsPath(path)
		for i := 0; i+1 < len(params); i += 2 {
			request = request.Param(params[i], params[i+1])
		}
		result := request.Do(t.Context())
		if err := result.Error(); err != nil {
			return nil, err
		}
		return result.Raw()
	}
	code.push(t, task, token, "private work")
	if _, err := ask(bob, "DELETE", histories+"/a"); !apierrors.IsForbidden(err) {
		t.Errorf("bob deletes: %v", err)
	}
	if _, err := ask(bob, "GET", histories+"/a/export"); !apierrors.IsForbidden(err) {
		t.Errorf("bob exports: %v", err)
	}
	exported, err := ask(ann, "GET", histories+"/a/export")
	if err != nil || !strings.Contains(string(exported), `{"kind":"end"`) {
		t.Errorf("export: %v, %s", err, exported)
	}
	eventually(t, "search", func() error {
		body, err := ask(ann, "GET", strings.Replace(histories, "taskhistories", "search", 1), "q", "again")
		if err == nil && !strings.Contains(string(body), `"match":true`) {
			err = fmt.Errorf("found %s", body)
		}
		return err
	})
	if _, err := ask(ann, "DELETE", histories+"/a"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "kubectl delete tasks.clew.dev a") {
		t.Errorf("deleted although the Task exists: %v", err)
	}
	post := func() error {
		clients, err := kubernetes.NewForConfig(ann)
		if err != nil {
			t.Fatal(err)
		}
		return clients.RESTClient().Post().AbsPath(histories).Body(exported).Do(t.Context()).Error()
	}
	if err := post(); !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "a Task with the UID "+string(task.UID)+" exists") {
		t.Errorf("imported although the Task exists: %v", err)
	}
	if err := kube.Client.Delete(t.Context(), task); err != nil {
		t.Fatal(err)
	}

	// The gitstore does not know the server: nothing is deleted, and the error says so.
	right, err := os.ReadFile(code.options.TokenFile)
	if err == nil {
		err = os.WriteFile(code.options.TokenFile, []byte(tokenOf(t, "team", "bob", authenticationv1.TokenRequestSpec{Audiences: []string{"gitstore.clew.dev"}})), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(ann, "DELETE", histories+"/a"); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "delete it again") {
		t.Errorf("the gitstore refuses: %v", err)
	}
	if !code.holds(t, "private work") {
		t.Error("the code is gone")
	}
	if err := os.WriteFile(code.options.TokenFile, right, 0o600); err != nil {
		t.Fatal(err)
	}
	body, err := ask(ann, "DELETE", histories+"/a")
	var deleted historyv1alpha1.HistoryDeletion
	if err == nil {
		err = json.Unmarshal(body, &deleted)
	}
	if err != nil {
		t.Fatalf("delete: %v, %s", err, body)
	}
	if deleted.Messages != 2 || deleted.Refs != 1 || deleted.Repositories != 1 {
		t.Errorf("%d messages, and %d refs in %d repositories were deleted, want 2, and 1 in 1", deleted.Messages, deleted.Refs, deleted.Repositories)
	}
	if code.holds(t, "private work") {
		t.Error("the code still exists")
	}
	if _, err := ask(ann, "DELETE", histories+"/a"); !apierrors.IsNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := post(); err != nil {
		t.Errorf("import: %v", err)
	}
}

// retention tests what the maintenance asks about a history whose retention is over, and how it
// deletes code.
func retention(t *testing.T, code codeOf) {
	namespace(t, "kept")
	task := newTask(t, "kept", "a")
	adopter := builders.Task("b", builders.InNamespace("kept"))
	adopter.Spec.Adopt = clewv1alpha1.AdoptLatest
	create(t, adopter)
	continuing := newTask(t, "kept", "e")
	continuing.Status.Adoption = &clewv1alpha1.AdoptionStatus{TaskUID: "former", EarlierTaskUIDs: []string{"first"}, Message: "the task continues it"}
	if err := kube.Client.Status().Update(t.Context(), continuing); err != nil {
		t.Fatal(err)
	}
	for name, adopt := range map[string]clewv1alpha1.AdoptPolicy{"c": clewv1alpha1.AdoptLatest, "d": clewv1alpha1.AdoptNever} {
		create(t, &clewv1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: "kept", Name: "makes-" + name}, Spec: clewv1alpha1.ForkSpec{
			SourceRef: clewv1alpha1.NameReference{Name: "a"}, Adopt: adopt, Variants: []clewv1alpha1.ForkVariant{{Name: name}}}})
	}
	objects, err := metadata.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := dynamic.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	p := &parts{tasks: newLiveTasks(objects), adopters: newAdopters(whole)}
	of := func(namespace, name, uid string) history.Task {
		return history.Task{Namespace: namespace, Name: name, UID: uid}
	}
	if _, err := p.awaited(t.Context(), of("kept", "a", "earlier")); err == nil || !strings.Contains(err.Error(), "--gitstore-url") {
		t.Errorf("without a gitstore, a deletion begins: %v", err)
	}
	if err := p.deleteCode(t.Context(), of("kept", "a", "earlier"), nil); err == nil || !strings.Contains(err.Error(), "--gitstore-url") {
		t.Errorf("without a gitstore: %v", err)
	}
	p.code = codeStore{gitstoreapi.Client{BaseURL: code.options.URL, CAFile: code.options.CAFile, TokenFile: code.options.TokenFile}}
	for name, test := range map[string]struct {
		task            history.Task
		formers         []string
		exists, awaited bool
	}{
		"an existing Task":                  {of("kept", "a", string(task.UID)), nil, true, false},
		"a deleted Task":                    {of("kept", "gone", "earlier"), nil, false, false},
		"one whose name a Task has":         {of("kept", "a", "earlier"), nil, false, false},
		"one that a Task waits to adopt":    {of("kept", "b", "earlier"), nil, false, true},
		"one that a Fork waits to adopt":    {of("kept", "c", "earlier"), nil, false, true},
		"one that a Fork does not adopt":    {of("kept", "d", "earlier"), nil, false, false},
		"a namespace that was deleted":      {of("gone@uid-of-a-namespace", "a", "earlier"), nil, false, false},
		"one whose former Task is back":     {of("kept", "a", "later"), []string{"earlier", string(task.UID)}, true, false},
		"one that a Task says it adopted":   {of("kept", "e", "former"), nil, true, false},
		"one that was adopted before that":  {of("kept", "e", "first"), nil, true, false},
		"one adopted by it that it adopted": {of("kept", "e", "between"), []string{"former"}, true, false},
		"one that waits for being granted":  {of("kept@uid-of-a-namespace", "b", "earlier"), nil, false, true},
	} {
		exists, continues, err := p.taskExists(t.Context(), test.task, test.formers)
		if exists != test.exists || (continues == "former") != (test.task.Name == "e") || err != nil {
			t.Errorf("%s exists: %v, and its Task continues %q, %v; want %v", name, exists, continues, err, test.exists)
		}
		awaited, err := p.awaited(t.Context(), test.task)
		if awaited != test.awaited || err != nil {
			t.Errorf("%s is awaited: %v, %v; want %v", name, awaited, err, test.awaited)
		}
	}
	if err := p.deleteCode(t.Context(), of("gone@uid-of-a-namespace", "a", "earlier"), []string{"former"}); err != nil {
		t.Errorf("delete code: %v", err)
	}
}
