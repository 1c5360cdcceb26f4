package podidentity_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/testing/apiserver"
)

// realCluster issues real tokens.
type realCluster struct {
	t      *testing.T
	client kubernetes.Interface
	config *rest.Config
}

// Get implements podidentity.Namespaces. It has no cache: here, a namespace is removed at once.
func (c realCluster) Get(ctx context.Context, name string) (namespaceid.Namespace, error) {
	names, err := namespaceid.New(c.config)
	if err != nil {
		return namespaceid.Namespace{}, err
	}
	return names.Get(ctx, name)
}

func (c realCluster) pod(name string, labels map[string]string, owners ...metav1.OwnerReference) *corev1.Pod {
	c.t.Helper()
	pod, err := c.client.CoreV1().Pods("team").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: labels, OwnerReferences: owners},
		Spec:       corev1.PodSpec{ServiceAccountName: "clew-task", Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// token returns a token of an account, bound to a pod unless that is nil.
func (c realCluster) token(account, audience string, pod *corev1.Pod) string {
	c.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	got, err := c.client.CoreV1().ServiceAccounts("team").CreateToken(c.t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got.Status.Token
}

// prepare creates a namespace with the accounts clew-task, which may do nothing,
// and ada, who may get checkpoints.
func (c realCluster) prepare() {
	c.t.Helper()
	ctx, core, rbac := c.t.Context(), c.client.CoreV1(), c.client.RbacV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	for _, name := range []string{"clew-task", "ada"} {
		if err == nil {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err = core.ServiceAccounts("team").Create(ctx, account, metav1.CreateOptions{})
		}
	}
	if err == nil {
		_, err = rbac.Roles("team").Create(ctx, &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"clew.dev"}, Resources: []string{"checkpoints"}, Verbs: []string{"get"}}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = rbac.RoleBindings("team").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "ada", Namespace: "team"}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestRealTokens(t *testing.T) {
	server, err := apiserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := realCluster{t: t, client: client, config: server.Config}
	c.prepare()

	const uid = "8b0f8f5e-1111-4222-8333-444455556666"
	controller := true
	owner := metav1.OwnerReference{APIVersion: "clew.dev/v1alpha1", Kind: "Task", Name: "fix", UID: types.UID(uid), Controller: &controller}
	labels := map[string]string{"clew.dev/task": "fix", "clew.dev/task-uid": uid, "clew.dev/attempt": "2"}
	pod := c.pod("fix-2", labels, owner)
	token := c.token("clew-task", "clew.dev", pod)
	fresh := func() *podidentity.Verifier { return podidentity.New(client, c, podidentity.Options{}) }

	got, err := fresh().Verify(t.Context(), token)
	want := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: uid, Attempt: 2, PodName: "fix-2", PodUID: string(pod.UID)}
	if err != nil {
		t.Fatalf("the token of a task's pod: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("identity (-want +got):\n%s", diff)
	}
	for name, test := range map[string]struct {
		token string
		kind  error
	}{
		"of another audience":      {c.token("clew-task", "other", pod), podidentity.ErrUnauthenticated},
		"of the API server":        {c.token("clew-task", server.Config.Host, pod), podidentity.ErrUnauthenticated},
		"with a changed signature": {token[:len(token)-8] + "AAAAAAAA", podidentity.ErrUnauthenticated},
		"of no pod":                {c.token("clew-task", "clew.dev", nil), podidentity.ErrNotTask},
		"of a pod of no task":      {c.token("clew-task", "clew.dev", c.pod("plain", nil)), podidentity.ErrNotTask},
		"of a pod without owner":   {c.token("clew-task", "clew.dev", c.pod("posing", labels)), podidentity.ErrForbidden},
	} {
		if _, err := fresh().Verify(t.Context(), test.token); !errors.Is(err, test.kind) || errors.Is(err, podidentity.ErrPodGone) {
			t.Errorf("a token %s: got %v, want %v", name, err, test.kind)
		}
	}
	if _, err := fresh().VerifyReader(t.Context(), c.token("ada", "clew.dev", nil), "team"); err != nil {
		t.Errorf("a reader: %v", err)
	}
	if _, err := fresh().VerifyReader(t.Context(), c.token("ada", "clew.dev", nil), "default"); !errors.Is(err, podidentity.ErrForbidden) {
		t.Errorf("a reader in another namespace: got %v, want ErrForbidden", err)
	}
	if _, err := fresh().VerifyReader(t.Context(), token, "team"); !errors.Is(err, podidentity.ErrForbidden) {
		t.Errorf("a task's token without permission to read: got %v, want ErrForbidden", err)
	}
	ada := c.token("ada", "clew.dev", nil)
	if err := fresh().VerifyServiceAccount(t.Context(), ada, "team", "ada"); err != nil {
		t.Errorf("the expected account: %v", err)
	}
	for name, test := range map[string]struct {
		token, namespace, account string
		kind                      error
	}{
		"of another account":   {token, "team", "ada", podidentity.ErrForbidden},
		"of another namespace": {ada, "default", "ada", podidentity.ErrForbidden},
		"for nobody":           {ada, "", "", podidentity.ErrForbidden},
		"of another audience":  {c.token("ada", "other", nil), "team", "ada", podidentity.ErrUnauthenticated},
	} {
		if err := fresh().VerifyServiceAccount(t.Context(), test.token, test.namespace, test.account); !errors.Is(err, test.kind) {
			t.Errorf("an account's token %s: got %v, want %v", name, err, test.kind)
		}
	}
	c.goneAndReplaced(fresh, pod, token, labels, owner)
	c.madeAnew(fresh(), labels, owner)
}

// goneAndReplaced checks that the token of a deleted pod is refused, even when a new pod
// has its name.
func (c realCluster) goneAndReplaced(fresh func() *podidentity.Verifier, pod *corev1.Pod, token string, labels map[string]string, owner metav1.OwnerReference) {
	c.t.Helper()
	now := int64(0)
	if err := c.client.CoreV1().Pods("team").Delete(c.t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		c.t.Fatal(err)
	}
	refused := func(when string) {
		c.t.Helper()
		if _, err := fresh().Verify(context.WithoutCancel(c.t.Context()), token); !errors.Is(err, podidentity.ErrPodGone) {
			c.t.Errorf("%s: got %v, want ErrPodGone", when, err)
		}
	}
	refused("the pod is gone")
	c.pod(pod.Name, labels, owner)
	refused("the pod was replaced")
}

// madeAnew checks that what was allowed in a namespace is not in one that is made anew under its
// name, however short ago that was.
func (c realCluster) madeAnew(verifier *podidentity.Verifier, labels map[string]string, owner metav1.OwnerReference) {
	c.t.Helper()
	ctx, none := c.t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	try := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	neighbour := c.tokenOf("default", "default")
	_, err := c.client.RbacV1().RoleBindings("team").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "neighbour"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: "default"}},
	}, metav1.CreateOptions{})
	try(err)
	pod := c.token("clew-task", "clew.dev", c.pod("fix-3", labels, owner))
	check := func(when string, wantPod, wantNeighbour error) {
		c.t.Helper()
		if _, err := verifier.Verify(ctx, pod); !errors.Is(err, wantPod) {
			c.t.Errorf("%s, the task's pod gets %v, want %v", when, err, wantPod)
		}
		if _, err := verifier.VerifyReader(ctx, neighbour, "team"); !errors.Is(err, wantNeighbour) {
			c.t.Errorf("%s, a reader of another namespace gets %v, want %v", when, err, wantNeighbour)
		}
	}
	check("at first", nil, nil)
	try(c.client.CoreV1().Pods("team").DeleteCollection(ctx, none, metav1.ListOptions{}))
	try(c.client.CoreV1().ServiceAccounts("team").DeleteCollection(ctx, none, metav1.ListOptions{}))
	try(c.client.RbacV1().RoleBindings("team").DeleteCollection(ctx, none, metav1.ListOptions{}))
	try(c.client.RbacV1().Roles("team").DeleteCollection(ctx, none, metav1.ListOptions{}))
	try(c.client.CoreV1().Namespaces().Delete(ctx, "team", none))
	gone, err := c.client.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
	try(err)
	gone.Spec.Finalizers = nil
	_, err = c.client.CoreV1().Namespaces().Finalize(ctx, gone, metav1.UpdateOptions{})
	try(err)
	c.prepare()
	check("in the namespace that is made anew", podidentity.ErrPodGone, podidentity.ErrForbidden)
}

// tokenOf returns a token of an account of any namespace, which is made if there is none.
func (c realCluster) tokenOf(namespace, account string) string {
	c.t.Helper()
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(c.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"clew.dev"}}}
	got, err := accounts.CreateToken(c.t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got.Status.Token
}
