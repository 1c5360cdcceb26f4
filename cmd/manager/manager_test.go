package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

// TestItWorksWithItsOwnRightsAndWithoutPostgres runs the whole program with an account that has
// the generated role and the rights for leader election, and nothing else. Postgres is
// unreachable, except while the task's first attempt gets its number.
func TestItWorksWithItsOwnRightsAndWithoutPostgres(t *testing.T) {
	g := gomega.NewWithT(t)
	g.SetDefaultEventuallyTimeout(30 * time.Second)
	kubeconfig, err := server.Kubeconfig("clew-manager")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	file := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(file, kubeconfig, 0o600)).To(gomega.Succeed())
	t.Setenv("KUBECONFIG", file)
	pg, err := pgtest.Start(t.Context(), postgres.Migrate)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { _ = pg.Stop() })
	t.Setenv(postgres.DSNEnv, pg.Database(t))
	t.Cleanup(func() { _ = pg.Restart(context.Background()) }) // the database is dropped there
	g.Expect(pg.StopNow()).To(gomega.Succeed())
	grantRole(t)

	o := defaultOptions()
	o.leaderElect, o.leaderElectNamespace = true, "default"
	killed(t, "default", "manager-0")
	o.metricsAddress = "0"
	o.daemonImage, o.serverURL, o.gitStoreURL = "clew:test", "https://server:8443", "https://gitstore:8443"
	o.probeAddress = freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, o) }()

	g.Eventually(func() error {
		response, err := http.Get("http://" + o.probeAddress + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", response.StatusCode)
		}
		return nil
	}).Should(gomega.Succeed(), "it is ready")
	task := builders.Task("work")
	g.Expect(server.Client.Create(ctx, task)).To(gomega.Succeed())
	g.Eventually(func() string {
		g.Expect(server.Client.Get(ctx, client.ObjectKeyFromObject(task), task)).To(gomega.Succeed())
		if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded); c != nil {
			return c.Message
		}
		return ""
	}).Should(gomega.ContainSubstring("waiting for the history store"), "it says what the task waits for")
	g.Expect(pg.Restart(ctx)).To(gomega.Succeed())
	pod := &corev1.Pod{}
	g.Eventually(func() error {
		return server.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "work-1"}, pod)
	}).Should(gomega.Succeed(), "the pod is made")
	g.Expect(pg.StopNow()).To(gomega.Succeed())

	// It must have the rights to stop and start pods as well.
	g.Expect(server.Client.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
	g.Eventually(func() error {
		return server.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "work-2"}, pod)
	}).Should(gomega.Succeed(), "a lost pod is replaced")
	g.Eventually(func() int {
		events := &corev1.EventList{}
		g.Expect(server.Client.List(ctx, events, client.InNamespace("default"))).To(gomega.Succeed())
		n := 0
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "Task" {
				n++
			}
		}
		return n
	}).Should(gomega.BeNumerically(">=", 3), "Events are emitted")

	stop()
	select {
	case err := <-done:
		g.Expect(err).NotTo(gomega.HaveOccurred())
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end when its context is cancelled")
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// killed leaves the lease like a manager that was killed in the pod: it was not released. The
// next one, in the same pod, need not wait until it expires.
func killed(t *testing.T, namespace, pod string) *coordinationv1.Lease {
	t.Helper()
	t.Setenv(podEnv, pod)
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rollback.LeaseName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &pod, LeaseDurationSeconds: ptr.To(int32(3600)), AcquireTime: &now, RenewTime: &now, LeaseTransitions: ptr.To(int32(1)),
		},
	}
	if err := server.Client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	return lease
}

// Only the lease goes back, as seen after the API server has passed all resource versions that
// the manager had seen.
func TestItEndsWithAReasonWhenItsLeaseGoesBack(t *testing.T) {
	g := gomega.NewWithT(t)
	g.SetDefaultEventuallyTimeout(30 * time.Second)
	kubeconfig, err := server.Kubeconfig("ann")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	file := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(file, kubeconfig, 0o600)).To(gomega.Succeed())
	t.Setenv("KUBECONFIG", file)
	g.Expect(server.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ann"}},
	})).To(gomega.Succeed())
	older := killed(t, "kube-public", "manager-0")
	o := defaultOptions()
	o.leaderElect, o.leaderElectNamespace = true, "kube-public"
	o.metricsAddress, o.probeAddress = "0", "0"
	mgr, err := newManager(o, logr.Discard())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(t.Context()) }()
	lease := &coordinationv1.Lease{}
	read := func() *coordinationv1.LeaseSpec {
		g.Expect(server.Client.Get(t.Context(), client.ObjectKeyFromObject(older), lease)).To(gomega.Succeed())
		return &lease.Spec
	}
	g.Eventually(func() time.Time { return read().RenewTime.Time }).Should(gomega.BeTemporally(">", older.Spec.RenewTime.Time), "it leads")
	g.Eventually(mgr.Elected()).Should(gomega.BeClosed())

	g.Eventually(func() error {
		read()
		lease.Annotations, lease.Spec = older.Annotations, *older.Spec.DeepCopy()
		return server.Client.Update(t.Context(), lease)
	}).Should(gomega.Succeed())
	g.Eventually(done).Should(gomega.Receive(gomega.MatchError(gomega.ContainSubstring("state was restored"))))
	g.Expect(*read()).To(gomega.Equal(older.Spec), "the lease is neither renewed nor given back, so that others can see it")
}

// grantRole gives the account the generated role, and the rights that the chart gives the manager
// in its own namespace.
func grantRole(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.Unmarshal(text, role); err != nil {
		t.Fatal(err)
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "clew-manager"}}
	lead := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lead"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{rollback.LeaseName}, Verbs: []string{"get", "update"}},
		},
	}
	for _, object := range []client.Object{
		role, lead,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "manager"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lead"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: lead.Name}},
	} {
		if err := server.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInvalidFlags(t *testing.T) {
	g := gomega.NewWithT(t)
	o := defaultOptions()
	o.serverURL, o.gitStoreURL, o.daemonPullPolicy, o.workers = "server:8443", "", "Sometimes", 0
	err := o.validate()
	for _, flag := range []string{"--daemon-image", "--server-url", "--gitstore-url", "--daemon-image-pull-policy", "--workers"} {
		g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(flag)))
	}
}

func TestInvalidAmounts(t *testing.T) {
	good := defaultOptions()
	good.daemonImage, good.serverURL, good.gitStoreURL = "clew:1", "https://server", "https://gitstore"
	gomega.NewWithT(t).Expect(good.validate()).To(gomega.Succeed())
	for flag, change := range map[string]func(*options){
		"--retry-base-delay must be more than 0":              func(o *options) { o.retryBase = 0 },
		"--namespace-history-bytes must not be negative":      func(o *options) { o.namespaceBytes = -1 },
		"--kube-api-qps must not be 0":                        func(o *options) { o.kubeQPS = 0 },
		"--kube-api-burst must be at least 1":                 func(o *options) { o.kubeQPS, o.kubeBurst = 5, 0 },
		"--spool-margin must be 0 or at least 1s, not 500ms":  func(o *options) { o.spoolMargin = 500 * time.Millisecond },
		"--spool-margin must be 0 or at least 1s, not -1s":    func(o *options) { o.spoolMargin = -time.Second },
		"--spool-margin-bytes must not be negative":           func(o *options) { o.spoolMarginBytes = "-1Mi" },
		"--spool-margin-bytes: much is not a quantity":        func(o *options) { o.spoolMarginBytes = "much" },
		"--daemon-limits: memory=64Mi is less than the 128Mi": func(o *options) { o.daemonRequests, o.daemonLimits = amount("128Mi"), amount("64Mi") },
		"--daemon-limits: memory=-64Mi must not be negative":  func(o *options) { o.daemonLimits = amount("-64Mi") },
		"--daemon-requests: memory=a lot is not a quantity":   func(o *options) { o.daemonRequests = amount("a lot") },
	} {
		o := defaultOptions()
		o.daemonImage, o.serverURL, o.gitStoreURL = good.daemonImage, good.serverURL, good.gitStoreURL
		change(o)
		gomega.NewWithT(t).Expect(o.validate()).To(gomega.MatchError(gomega.ContainSubstring(flag)))
	}
}

func amount(memory string) map[string]string { return map[string]string{"memory": memory} }
