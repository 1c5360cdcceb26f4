package server

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstore"
	"github.com/clew-dev/clew/internal/server/internal/testca"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var (
	pg   *pgtest.Server
	kube *apiserver.Server
	// served is the folder with the server's certificate, and the authority that signed
	// it.
	served string
)

// TestMain lets the test binary act as the gitstore's hook.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"hook", "pre-receive"}) {
		if err := gitstore.PreReceive(os.Stdin, os.Stdout, os.Getenv); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "clew-server-test")
	if err == nil {
		defer os.RemoveAll(folder)
		err = startCluster(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := pgtest.Run(m, &pg, nil)
	if err := kube.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// startCluster starts an API server with an aggregation layer.
func startCluster(folder string) error {
	authority, err := testca.New()
	if err != nil {
		return err
	}
	proxy := filepath.Join(folder, "proxy")
	served = filepath.Join(folder, "serving")
	for _, dir := range []string{proxy, served} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := authority.Write(proxy, "front-proxy-client"); err != nil {
		return err
	}
	if err := authority.Write(served, "clew-server", "localhost", "clew-server.clew-system.svc"); err != nil {
		return err
	}
	kube, err = apiserver.Start(func(s *envtest.APIServer) {
		s.Configure().
			Set("requestheader-client-ca-file", filepath.Join(proxy, "ca.crt")).
			Set("requestheader-allowed-names", "front-proxy-client").
			Set("requestheader-username-headers", "X-Remote-User").
			Set("requestheader-group-headers", "X-Remote-Group").
			Set("requestheader-extra-headers-prefix", "X-Remote-Extra-").
			Set("proxy-client-cert-file", filepath.Join(proxy, "tls.crt")).
			Set("proxy-client-key-file", filepath.Join(proxy, "tls.key"))
	})
	return err
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	if err := kube.Client.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func namespace(t *testing.T, name string) {
	t.Helper()
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func account(t *testing.T, namespace, name string) {
	t.Helper()
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
}

func tokenOf(t *testing.T, namespace, account string, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: spec}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := kube.Client.SubResource("token").Create(t.Context(), owner, request); err != nil {
		t.Fatalf("token: %v", err)
	}
	return request.Status.Token
}

// configOf returns a configuration for the API server with the identity of a service
// account.
func configOf(t *testing.T, namespace, account string) *rest.Config {
	t.Helper()
	config := rest.AnonymousClientConfig(kube.Config)
	config.BearerToken = tokenOf(t, namespace, account, authenticationv1.TokenRequestSpec{})
	return config
}

// serverAccount is the server's account with exactly the rights that it needs.
func serverAccount(t *testing.T) *rest.Config {
	t.Helper()
	account(t, "clew-system", "server")
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "clew-system", Name: "server"}}
	create(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "clew-server"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
			{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}, Verbs: []string{"get"}},
			{APIGroups: []string{"clew.dev"}, Resources: []string{"tasks"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{"clew.dev"}, Resources: []string{"checkpoints"}, Verbs: []string{"get", "list", "watch"}},
		},
	})
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "clew-server"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clew-server"}, Subjects: subjects,
	})
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clew-system", Name: "clew-server"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"clew-manager"}, Verbs: []string{"get"}},
		},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clew-system", Name: "clew-server"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "clew-server"}, Subjects: subjects,
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "clew-server"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"}, Subjects: subjects,
	})
	return configOf(t, "clew-system", "server")
}

// reader is an account that may read the history of one namespace.
func reader(t *testing.T, namespace, name string) *rest.Config {
	t.Helper()
	account(t, namespace, name)
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{"history.clew.dev"},
				Resources: []string{"tasks/conversation", "tasks/timeline", "tasks/snapshots", "timelines", "search", "taskhistories", "taskhistories/export"},
				Verbs:     []string{"get", "list"},
			},
			{APIGroups: []string{"history.clew.dev"}, Resources: []string{"taskhistories"}, Verbs: []string{"create", "delete"}},
			{APIGroups: []string{"history.clew.dev"}, Resources: []string{"timelines"}, Verbs: []string{"watch"}},
		},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
	})
	return configOf(t, namespace, name)
}

// podToken creates the pod of a task's attempt, as the manager does, and returns its
// token.
func podToken(t *testing.T, task *clewv1alpha1.Task, attempt int) string {
	t.Helper()
	live := &clewv1alpha1.Task{}
	if err := kube.Client.Get(t.Context(), client.ObjectKeyFromObject(task), live); err != nil {
		t.Fatal(err)
	}
	live.Status.Attempts = append(live.Status.Attempts, clewv1alpha1.Attempt{
		Number: int64(attempt), PodName: fmt.Sprintf("%s-%d", task.Name, attempt), Trigger: clewv1alpha1.AttemptStart,
	})
	if err := kube.Client.Status().Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	return forgedToken(t, task, task.Namespace, attempt)
}

// forgedToken creates a pod that poses as a task's pod, and returns its token.
func forgedToken(t *testing.T, task *clewv1alpha1.Task, namespace string, attempt int) string {
	t.Helper()
	isController := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", task.Name, attempt),
			Labels: map[string]string{
				clewv1alpha1.LabelTask: task.Name, clewv1alpha1.LabelTaskUID: string(task.UID), clewv1alpha1.LabelAttempt: strconv.Itoa(attempt),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "clew.dev/v1alpha1", Kind: "Task", Name: task.Name, UID: task.UID, Controller: &isController,
			}},
		},
		Spec: corev1.PodSpec{ServiceAccountName: "clew-task", Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}
	create(t, pod)
	return tokenOf(t, namespace, "clew-task", authenticationv1.TokenRequestSpec{
		Audiences:      []string{"server.clew.dev", "gitstore.clew.dev"},
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	})
}

func newTask(t *testing.T, namespace, name string) *clewv1alpha1.Task {
	t.Helper()
	task := builders.Task(name, builders.InNamespace(namespace))
	create(t, task)
	return task
}

// aggregate makes the API server forward the history API to a local port.
func aggregate(t *testing.T, address net.Addr) {
	t.Helper()
	port := address.(*net.TCPAddr).Port
	create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clew-system", Name: "clew-server"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	bundle, err := os.ReadFile(filepath.Join(served, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1alpha1.history.clew.dev"},
		"spec": map[string]any{
			"group": "history.clew.dev", "version": "v1alpha1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"caBundle": bundle64(bundle),
			"service":  map[string]any{"namespace": "clew-system", "name": "clew-server", "port": int64(port)},
		},
	}}
	create(t, service)
}
