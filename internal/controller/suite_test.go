package controller_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/clew-dev/clew/internal/testing/apiserver"
)

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controllers")
}

// server is the API server that all processes of the suite share: each spec has its own
// namespace.
var server *apiserver.Server

var _ = SynchronizedBeforeSuite(func() []byte {
	started, err := apiserver.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(started.Stop)
	address, err := started.Address()
	Expect(err).NotTo(HaveOccurred())
	return address
}, func(address []byte) {
	logger := zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true))
	log.SetLogger(logger)
	klog.SetLogger(logger)
	var err error
	server, err = apiserver.Connect(address)
	Expect(err).NotTo(HaveOccurred())
})
