// Package apiserver starts a real kube-apiserver and etcd for tests, with the
// custom resources and admission policies of this checkout installed.
//
// It promises a separate server, on free ports, that is stopped when the tests of
// the package end. It has no kubelet, scheduler or controller manager: a test does
// their work itself (see Kubelet in package builders).
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Server is a running API server.
type Server struct {
	// Config connects to it as an administrator.
	Config *rest.Config
	// Client reads and writes without a cache, as an administrator.
	Client client.Client
	// Scheme has the kinds of Kubernetes and Clew.
	Scheme *kruntime.Scheme

	environment *envtest.Environment
}

// Start starts the server; Stop stops it. The binaries come from KUBEBUILDER_ASSETS, or from
// the cache of the development cluster. configure may set more flags of the API server.
func Start(configure ...func(*envtest.APIServer)) (*Server, error) {
	kubeAPIServer, etcd, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{Scheme: Scheme()}
	controlPlane := envtest.ControlPlane{}
	controlPlane.GetAPIServer().Path = kubeAPIServer
	controlPlane.GetAPIServer().Configure().
		Append("max-requests-inflight", "0").
		Append("enable-priority-and-fairness", "false")
	for _, f := range configure {
		f(controlPlane.GetAPIServer())
	}
	controlPlane.Etcd = &envtest.Etcd{Path: etcd}
	controlPlane.Etcd.Configure().Append("unsafe-no-fsync")
	s.environment = &envtest.Environment{
		ControlPlane:             controlPlane,
		CRDDirectoryPaths:        []string{inRepository("config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	if s.Config, err = s.environment.Start(); err != nil {
		return nil, fmt.Errorf("start the API server for tests: %w", err)
	}
	s.Config.QPS, s.Config.Burst = -1, -1
	if s.Client, err = client.New(s.Config, client.Options{Scheme: s.Scheme}); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.installAdmission(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Main is the TestMain of a package whose tests share a server: it sets the
// server, runs the tests, and exits.
func Main(m *testing.M, server **Server) {
	started, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	*server = started
	code := m.Run()
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// Address returns what another process of a suite passes to Connect.
func (s *Server) Address() ([]byte, error) { return s.Kubeconfig("suite", "system:masters") }

// Connect returns a server that another process of the suite has started, and stops.
func Connect(address []byte) (*Server, error) {
	s := &Server{Scheme: Scheme()}
	var err error
	if s.Config, err = clientcmd.RESTConfigFromKubeConfig(address); err != nil {
		return nil, fmt.Errorf("read the address of the API server for tests: %w", err)
	}
	s.Config.QPS, s.Config.Burst = -1, -1
	if s.Client, err = client.New(s.Config, client.Options{Scheme: s.Scheme}); err != nil {
		return nil, fmt.Errorf("connect to the API server for tests: %w", err)
	}
	return s, nil
}

// Stop stops the server and deletes its data.
func (s *Server) Stop() error { return s.environment.Stop() }

// Kubeconfig returns the kubeconfig of a new user in these groups, who has no other rights.
func (s *Server) Kubeconfig(user string, groups ...string) ([]byte, error) {
	added, err := s.environment.AddUser(envtest.User{Name: user, Groups: groups}, nil)
	if err != nil {
		return nil, fmt.Errorf("add user %s: %w", user, err)
	}
	return added.KubeConfig()
}

// Scheme returns a scheme with the kinds of Kubernetes and Clew.
func Scheme() *kruntime.Scheme {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // the kinds are compiled in: this cannot happen
		}
	}
	return scheme
}

// installAdmission installs config/admission and waits until the policies are in force.
func (s *Server) installAdmission() error {
	files, err := filepath.Glob(inRepository("config", "admission", "*.yaml"))
	if err != nil {
		return err
	}
	files = append(files, inRepository("config", "requesters", "policy.yaml"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	installed := false
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		if err := s.applyFile(ctx, file); err != nil {
			return fmt.Errorf("install %s: %w", file, err)
		}
		installed = true
	}
	if !installed {
		return nil
	}
	return s.awaitAdmission(ctx)
}

// InstallTaskPodPolicy installs config/taskpods. Start does not, since most tests act as the
// manager with an administrator's account.
func (s *Server) InstallTaskPodPolicy(ctx context.Context) error {
	return s.applyFile(ctx, inRepository("config", "taskpods", "policy.yaml"))
}

// applyFile creates the objects of a YAML file.
func (s *Server) applyFile(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	decoder := utilyaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); err != nil {
			if errors.Is(err, os.ErrClosed) || err.Error() == "EOF" {
				return nil
			}
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := s.Client.Create(ctx, object); err != nil {
			return err
		}
	}
}

// awaitAdmission waits until a Task on the host's network is refused and another one gets its
// requester: the API server enforces policies only some time after they were created.
func (s *Server) awaitAdmission(ctx context.Context) error {
	policies := &admissionregistrationv1.ValidatingAdmissionPolicyList{}
	if err := s.Client.List(ctx, policies); err != nil {
		return err
	}
	prompt := "probe"
	probe := &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "admission-probe"},
		Spec:       v1alpha1.TaskSpec{Prompt: &prompt},
	}
	for {
		bad := probe.DeepCopy()
		bad.Spec.Template.Spec.HostNetwork = true
		err := s.Client.Create(ctx, bad, client.DryRunAll)
		if (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) && s.stamps(ctx, probe.DeepCopy()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the %d admission policies are not in force: %w", len(policies.Items), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stamps reports whether admission writes the requester into a Task.
func (s *Server) stamps(ctx context.Context, task *v1alpha1.Task) bool {
	task.Spec.Template.Spec.Containers = []corev1.Container{{Name: v1alpha1.AgentContainer, Image: "probe", Command: []string{"probe"}}}
	task.Spec.Workspace.Size = resource.MustParse("1Gi")
	err := s.Client.Create(ctx, task, client.DryRunAll)
	return err == nil && task.Spec.RequestedBy != nil
}

// binaries returns the paths of kube-apiserver and etcd.
func binaries() (kubeAPIServer, etcd string, err error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return filepath.Join(dir, "kube-apiserver"), filepath.Join(dir, "etcd"), nil
	}
	cache := os.Getenv("CLEW_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", "", fmt.Errorf("find the cache folder: %w", err)
		}
		cache = filepath.Join(home, ".cache", "clew")
	}
	kubeAPIServer = newest(filepath.Join(cache, "devcluster", "k8s-*", "bin", "kube-apiserver"))
	etcd = newest(filepath.Join(cache, "devcluster", "etcd-*", "bin", "etcd"))
	if kubeAPIServer == "" || etcd == "" {
		return "", "", fmt.Errorf("kube-apiserver or etcd is missing below %s: run make envtest-assets, or set KUBEBUILDER_ASSETS to a folder that contains both", cache)
	}
	return kubeAPIServer, etcd, nil
}

// newest returns the last file that matches the pattern; "" for none.
func newest(pattern string) string {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return found[len(found)-1]
}

// inRepository returns a path from the root of this checkout.
func inRepository(parts ...string) string {
	_, file, _, _ := runtime.Caller(0)
	top := filepath.Join(filepath.Dir(file), "..", "..", "..")
	return filepath.Join(append([]string{top}, parts...)...)
}
