package postgres_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("Notifications of changes of tasks", func() {
	It("name tasks, too, whose UIDs an older release has imported with spaces", func(ctx SpecContext) {
		t := GinkgoTB()
		task := taskNamed("a")
		task.UID = "a b c"
		w := begin(t, open(t), task, 3)
		listening, cancel := context.WithCancel(ctx)
		notified, ended := make(chan history.Notification, 10), make(chan error, 1)
		go func() { ended <- w.store.Listen(listening, func(n history.Notification) { notified <- n }) }()
		Eventually(notified).WithTimeout(20*time.Second).Should(Receive(Equal(history.Notification{})), "what was before may have been missed")
		w.append(checkpoint(1), durable(1))
		Eventually(notified).WithTimeout(20 * time.Second).Should(Receive(Equal(history.Notification{Task: task, Attempt: 3})))
		cancel()
		Eventually(ended).WithTimeout(20 * time.Second).Should(Receive())
	})
})
