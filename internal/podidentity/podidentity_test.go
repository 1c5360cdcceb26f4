package podidentity_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
)

const podUID = "11111111-2222-3333-4444-555555555555"

// token is a well-formed token. The fake API server publishes no keys to check it with.
var token = newIssuer().token("team", "clew.dev", "pod")

// lasting are namespaces of which none is made anew.
type lasting struct{}

func (lasting) Get(_ context.Context, name string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace{UID: "uid-of-" + name}, nil
}

// cluster is a fake API server whose answers a test can change.
type cluster struct {
	client  *fake.Clientset
	status  authenticationv1.TokenReviewStatus
	reviews int
	allowed bool
	denied  string // a resource that is denied though others are allowed
	access  []authorizationv1.SubjectAccessReviewSpec
	failing error
}

// newCluster returns a cluster with the pod fix-1 of the task fix, whose token it accepts.
func newCluster(t *testing.T, change func(*corev1.Pod)) *cluster {
	t.Helper()
	pod := taskPod()
	if change != nil {
		change(pod)
	}
	c := &cluster{client: fake.NewClientset(pod), status: podToken()}
	c.client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.reviews++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if review.Spec.Token != token || !cmp.Equal(review.Spec.Audiences, []string{"clew.dev"}) {
			t.Errorf("TokenReview asked about %q for %q", review.Spec.Token, review.Spec.Audiences)
		}
		review.Status = c.status
		return true, review, c.failing
	})
	c.client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		c.access = append(c.access, review.Spec)
		review.Status.Allowed = c.allowed && review.Spec.ResourceAttributes.Resource != c.denied
		return true, review, c.failing
	})
	return c
}

func taskPod() *corev1.Pod {
	controller := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "fix-1", UID: types.UID(podUID),
		Labels: map[string]string{"clew.dev/task": "fix", "clew.dev/task-uid": "task-uid", "clew.dev/attempt": "3"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "clew.dev/v1alpha1", Kind: "Task", Name: "fix", UID: "task-uid", Controller: &controller,
		}},
	}}
}

func podToken() authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true,
		Audiences:     []string{"clew.dev"},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:team:clew-task",
			Groups:   []string{"system:serviceaccounts"},
			Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/pod-name": {"fix-1"},
				"authentication.kubernetes.io/pod-uid":  {podUID},
			},
		},
	}
}

func TestVerifyReturnsTheTaskOfThePod(t *testing.T) {
	c := newCluster(t, nil)
	got, err := podidentity.New(c.client, lasting{}, podidentity.Options{}).Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	want := podidentity.Identity{
		Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Attempt: 3, PodName: "fix-1", PodUID: podUID,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
}

func TestAPodThatPublishesIsNoAttempt(t *testing.T) {
	c := newCluster(t, func(p *corev1.Pod) {
		delete(p.Labels, "clew.dev/attempt")
		p.Labels["clew.dev/publication"] = "2"
	})
	got, err := podidentity.New(c.client, lasting{}, podidentity.Options{}).Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	want := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Publishes: true, PodName: "fix-1", PodUID: podUID}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
}

func TestAPodThatPublishesABranchIsItsCheckpoints(t *testing.T) {
	owned := func(p *corev1.Pod) {
		p.Labels["clew.dev/publication"] = "2"
		p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "Checkpoint", "fix-4", "c4"
	}
	got, err := podidentity.New(newCluster(t, owned).client, lasting{}, podidentity.Options{}).Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	want := podidentity.Identity{
		Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Publishes: true, PodName: "fix-1", PodUID: podUID, Checkpoint: "fix-4", CheckpointUID: "c4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	attempt := newCluster(t, func(p *corev1.Pod) {
		owned(p)
		delete(p.Labels, "clew.dev/publication")
	})
	if _, err := podidentity.New(attempt.client, lasting{}, podidentity.Options{}).Verify(t.Context(), token); !errors.Is(err, podidentity.ErrForbidden) {
		t.Errorf("the pod of an attempt may be a Checkpoint's (%v)", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		token  string
		pod    func(*corev1.Pod)
		status func(*authenticationv1.TokenReviewStatus)
		kind   error
		says   string
	}{
		"no JWT":             {token: "a.b.c", kind: podidentity.ErrUnauthenticated, says: "not a service account token"},
		"for another":        {token: newIssuer().token("team", "other", "pod"), kind: podidentity.ErrUnauthenticated, says: "not meant for the audience"},
		"no token":           {token: "-", kind: podidentity.ErrUnauthenticated, says: "no token was given"},
		"line break":         {token: "a\nb", kind: podidentity.ErrUnauthenticated, says: "characters"},
		"too long":           {token: strings.Repeat("a", 20_000), kind: podidentity.ErrUnauthenticated, says: "longer"},
		"not authenticated":  {status: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, kind: podidentity.ErrUnauthenticated, says: "did not accept"},
		"other audience":     {status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"other"} }, kind: podidentity.ErrUnauthenticated, says: "not meant for the audience"},
		"audience unknown":   {status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, kind: podidentity.ErrUnauthenticated, says: "not meant for the audience"},
		"a person":           {status: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "ada" }, kind: podidentity.ErrNotTask, says: "not bound to a pod"},
		"odd account":        {status: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:a:b:c" }, kind: podidentity.ErrNotTask, says: "not bound to a pod"},
		"not bound to a pod": {status: func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil }, kind: podidentity.ErrNotTask, says: "not bound to a pod"},
		"other namespace":    {status: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:other:clew-task" }, kind: podidentity.ErrUnauthenticated, says: "no longer exists"},
		"replaced pod":       {pod: func(p *corev1.Pod) { p.UID = "new" }, kind: podidentity.ErrUnauthenticated, says: "no longer exists"},
		"no labels":          {pod: func(p *corev1.Pod) { p.Labels = nil }, kind: podidentity.ErrNotTask, says: "no label"},
		"no owner":           {pod: func(p *corev1.Pod) { p.OwnerReferences = nil }, kind: podidentity.ErrForbidden, says: "not controlled by"},
		"owner not controller": {pod: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
			kind: podidentity.ErrForbidden, says: "not controlled by"},
		"owner of another kind": {pod: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" },
			kind: podidentity.ErrForbidden, says: "not controlled by"},
		"owner of another group": {pod: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "tekton.dev/v1" },
			kind: podidentity.ErrForbidden, says: "not controlled by"},
		"owner of another UID": {pod: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" },
			kind: podidentity.ErrForbidden, says: "not controlled by"},
		"attempt zero":     {pod: func(p *corev1.Pod) { p.Labels["clew.dev/attempt"] = "0" }, kind: podidentity.ErrForbidden, says: "positive number"},
		"attempt no digit": {pod: func(p *corev1.Pod) { delete(p.Labels, "clew.dev/attempt") }, kind: podidentity.ErrForbidden, says: "positive number"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, test.pod)
			if test.status != nil {
				test.status(&c.status)
			}
			given := token
			if test.token != "" {
				given = strings.TrimSuffix(test.token, "-")
			}
			verifier := podidentity.New(c.client, lasting{}, podidentity.Options{})
			_, err := verifier.Verify(t.Context(), given)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got error %v, want one of kind %q that contains %q", err, test.kind, test.says)
			}
			// A refusal is cached for a moment: the API server is not asked again.
			before := c.reviews
			if _, err := verifier.Verify(t.Context(), given); !errors.Is(err, test.kind) {
				t.Fatalf("the second Verify returned %v, want %v", err, test.kind)
			}
			if c.reviews != before {
				t.Fatal("the refusal was not cached: the token was reviewed again")
			}
		})
	}
}

func TestNotTaskIsForbidden(t *testing.T) {
	if !errors.Is(podidentity.ErrNotTask, podidentity.ErrForbidden) {
		t.Fatal("ErrNotTask does not wrap ErrForbidden")
	}
}

func TestAPIServerDownIsUnavailable(t *testing.T) {
	c := newCluster(t, nil)
	c.failing = errors.New("connection refused")
	verifier := podidentity.New(c.client, lasting{}, podidentity.Options{})
	if _, err := verifier.Verify(t.Context(), token); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Fatalf("a failing TokenReview: got %v, want ErrUnavailable", err)
	}
	c.failing = nil
	c.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	if _, err := verifier.Verify(t.Context(), token); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Fatalf("a failing read of the pod: got %v, want ErrUnavailable", err)
	}
}

func TestSuccessIsCachedForHalfAMinute(t *testing.T) {
	c := newCluster(t, nil)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(c.client, lasting{}, podidentity.Options{Clock: clock, CacheTTL: time.Hour})
	verify := func(wantReviews int) {
		t.Helper()
		if _, err := verifier.Verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if c.reviews != wantReviews {
			t.Fatalf("%d reviews, want %d", c.reviews, wantReviews)
		}
	}
	verify(1)
	clock.SetTime(clock.Now().Add(29 * time.Second))
	verify(1)
	clock.SetTime(clock.Now().Add(2 * time.Second))
	verify(2)
}

func TestARefusalIsCachedForTenSeconds(t *testing.T) {
	c := newCluster(t, nil)
	c.status.Authenticated = false
	clock := clocktesting.NewFakePassiveClock(time.Now())
	verifier := podidentity.New(c.client, lasting{}, podidentity.Options{Clock: clock})
	if _, err := verifier.Verify(t.Context(), token); !errors.Is(err, podidentity.ErrUnauthenticated) {
		t.Fatal(err)
	}
	c.status.Authenticated = true
	clock.SetTime(clock.Now().Add(11 * time.Second))
	if _, err := verifier.Verify(t.Context(), token); err != nil {
		t.Fatalf("a refusal was still cached after 11 seconds: %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := newCluster(t, nil)
	c.allowed = true
	verifier := podidentity.New(c.client, lasting{}, podidentity.Options{CacheSize: 2})
	for i := range 5 {
		if _, err := verifier.VerifyReader(t.Context(), token, fmt.Sprintf("ns-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if size := verifier.CacheLen(); size != 2 {
		t.Fatalf("the cache has %d entries, want 2", size)
	}
}

type checkerFunc func(podidentity.Identity) error

func (f checkerFunc) CheckTask(_ context.Context, identity podidentity.Identity) error {
	return f(identity)
}

func TestTaskCheckerHasTheLastWord(t *testing.T) {
	for name, test := range map[string]struct{ err, kind error }{
		"refuses":  {fmt.Errorf("%w: there is no such task", podidentity.ErrForbidden), podidentity.ErrForbidden},
		"fails":    {errors.New("timed out"), podidentity.ErrUnavailable},
		"confirms": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			checker := checkerFunc(func(identity podidentity.Identity) error {
				if identity.TaskUID != "task-uid" {
					t.Errorf("asked about %+v", identity)
				}
				return test.err
			})
			_, err := podidentity.New(newCluster(t, nil).client, lasting{}, podidentity.Options{Tasks: checker}).Verify(t.Context(), token)
			if !errors.Is(err, test.kind) {
				t.Fatalf("error %v, want %v", err, test.kind)
			}
		})
	}
}

func TestVerifyReader(t *testing.T) {
	c := newCluster(t, nil)
	c.status.User = authenticationv1.UserInfo{
		Username: "ada", UID: "7", Groups: []string{"devs"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	verifier := podidentity.New(c.client, lasting{}, podidentity.Options{})
	if _, err := verifier.VerifyReader(t.Context(), token, "team"); !errors.Is(err, podidentity.ErrForbidden) {
		t.Fatalf("a caller without permission: got %v, want ErrForbidden", err)
	}
	c.allowed = true
	verifier = podidentity.New(c.client, lasting{}, podidentity.Options{})
	reader, err := verifier.VerifyReader(t.Context(), token, "team")
	if err != nil {
		t.Fatalf("a caller with permission: %v", err)
	}
	if diff := cmp.Diff(podidentity.Reader{Username: "ada", Namespace: "team", Conversations: true}, reader); diff != "" {
		t.Errorf("reader (-want +got):\n%s", diff)
	}
	var want []authorizationv1.SubjectAccessReviewSpec
	for _, of := range []authorizationv1.ResourceAttributes{
		{Namespace: "team", Verb: "get", Group: "clew.dev", Version: "v1alpha1", Resource: "checkpoints"},
		{Namespace: "team", Verb: "get", Group: "history.clew.dev", Version: "v1alpha1", Resource: "tasks", Subresource: "conversation"},
	} {
		want = append(want, authorizationv1.SubjectAccessReviewSpec{
			User: "ada", UID: "7", Groups: []string{"devs"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}}, ResourceAttributes: &of,
		})
	}
	if diff := cmp.Diff(want, c.access[1:]); diff != "" {
		t.Errorf("SubjectAccessReviews (-want +got):\n%s", diff)
	}
	c.denied = "tasks"
	if reader, err = verifier.VerifyReader(t.Context(), token, "code-only"); err != nil || reader.Conversations {
		t.Errorf("a caller who may not read conversations: got %+v, %v", reader, err)
	}
	// Permission in one namespace gives none in another.
	c.allowed = false
	if _, err := verifier.VerifyReader(t.Context(), token, "other"); !errors.Is(err, podidentity.ErrForbidden) {
		t.Fatalf("another namespace: got %v, want ErrForbidden", err)
	}
	c.failing = errors.New("connection refused")
	if _, err := verifier.VerifyReader(t.Context(), token, "third"); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Fatalf("a failing SubjectAccessReview: got %v, want ErrUnavailable", err)
	}
}

// changing are namespaces of which one may be made anew, be removed, or be unknown.
type changing struct {
	uid string
	err error
}

func (c *changing) Get(context.Context, string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace{UID: c.uid}, c.err
}

func TestAnAnswerHoldsForTheNamespaceThatItWasGivenAbout(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*changing)
		kind    error // of the next call
		reviews int   // of the token, in all
	}{
		"the same":         {func(*changing) {}, nil, 1},
		"made anew":        {func(c *changing) { c.uid = "second" }, nil, 2},
		"removed":          {func(c *changing) { c.uid, c.err = "", namespaceid.ErrNone }, nil, 2},
		"not known at all": {func(c *changing) { c.uid, c.err = "", errors.New("timed out") }, podidentity.ErrUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, names := newCluster(t, nil), &changing{uid: "first"}
			verifier := podidentity.New(c.client, names, podidentity.Options{})
			if _, err := verifier.Verify(t.Context(), token); err != nil {
				t.Fatal(err)
			}
			test.change(names)
			if _, err := verifier.Verify(t.Context(), token); !errors.Is(err, test.kind) {
				t.Errorf("Verify returned %v, want %v", err, test.kind)
			}
			if c.reviews != test.reviews {
				t.Errorf("%d reviews of the token, want %d", c.reviews, test.reviews)
			}
		})
	}
}
